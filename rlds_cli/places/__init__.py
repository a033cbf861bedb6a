"""Places that files are read from and written to."""
