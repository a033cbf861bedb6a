"""D4RL: its HDF5 files, and its functions."""

FORMATS = {"d4rl": "D4RL"}
