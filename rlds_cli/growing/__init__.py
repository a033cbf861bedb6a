"""Datasets that grow: rows and logs on disk, generations of them, and what is kept."""
