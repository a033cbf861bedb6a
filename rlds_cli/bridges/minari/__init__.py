"""Minari: its datasets on disk, and its functions."""
