"""Formats of other libraries."""
