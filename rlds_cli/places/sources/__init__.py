"""Places that files are read from and written to: a source for each kind, and one engine with retries for all."""
