"""Rerun: recordings that its viewer shows and its catalog queries, a file for each episode."""

FORMATS = {"rerun": "Rerun"}
