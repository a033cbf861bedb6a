"""Summaries, checks and speed of datasets."""
