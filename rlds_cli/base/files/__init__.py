"""The file system: safe opening, locks, links, free space, hashes, and JSON from untrusted files."""
