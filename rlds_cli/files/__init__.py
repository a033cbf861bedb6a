"""The file system: opening safely, locks, links, free space, hashes, JSON of strangers."""
