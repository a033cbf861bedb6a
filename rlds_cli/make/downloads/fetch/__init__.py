"""One file at a time from a source to the disk: resumed, verified, retried."""
