"""Datasets of a home over time: verify, repair, pin, re-encode, clean up, remove."""
