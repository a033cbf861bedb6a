"""robomimic: its HDF5 files."""

FORMATS = {"robomimic": "Robomimic"}
