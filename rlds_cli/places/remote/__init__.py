"""Datasets at an address: object stores, the index of what was pushed, and its blocks."""
