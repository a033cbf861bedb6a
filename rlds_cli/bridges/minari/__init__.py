"""Minari: its datasets on disk, and its functions."""

FORMATS = {"minari": "Minari"}
