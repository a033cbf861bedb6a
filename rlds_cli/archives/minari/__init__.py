"""Minari: its datasets on disk, and its functions.

`read` plans and reads a dataset: `description` describes it, `hdf5_storage` and `arrow_storage` read its files. `write`
writes HDF5, `dropin` has the functions.
"""
