"""Datasets from archives, addresses and episodes in memory."""
