"""robomimic: its HDF5 files, which `read` reads and `write` writes."""
