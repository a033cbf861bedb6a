"""What a batch holds: fields of the store, and columns computed for the sample."""
