"""Datasets at an address: object stores, the index of what was pushed, and its blocks."""

NAME = "rlds.json"  # the index of the versions of a dataset
