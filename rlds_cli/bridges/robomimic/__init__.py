"""robomimic: its HDF5 files."""
