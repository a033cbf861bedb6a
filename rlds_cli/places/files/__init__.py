"""One file of an archive, from a place to the disk: resumed, by several connections, checked before it has its name."""
