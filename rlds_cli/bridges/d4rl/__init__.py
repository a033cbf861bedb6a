"""D4RL: its HDF5 files, and its functions."""
