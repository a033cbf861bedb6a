"""The fields of a batch: those of the store, and columns computed for the sample."""
