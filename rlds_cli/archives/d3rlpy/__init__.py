"""d3rlpy: its replay buffers.

`read` reads the HDF5 files of both versions, `dropin` gives datasets as replay buffers.
"""
