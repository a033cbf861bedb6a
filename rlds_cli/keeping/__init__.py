"""Datasets that are here: are they what they were, what do they take, re-encode them, remove them."""
