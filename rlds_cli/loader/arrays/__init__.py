"""The arrays of a batch: frameworks, dtypes, devices, and workers of torch's DataLoader."""
