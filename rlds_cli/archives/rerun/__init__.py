"""Rerun: recordings that its viewer shows and its catalog queries, a file for each episode.

`write` writes them; the family `recordings` reads them.
"""
