"""Send datasets and archives to stores: push, mirror, and the pages beside the data."""
