"""Windows: the steps that make a sample."""
