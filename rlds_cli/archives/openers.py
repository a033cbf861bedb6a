"""Modules that readers of other packages open their files with."""

from rlds_cli.archives.formats import hdf5 as hdf5
from rlds_cli.archives.formats import parquet as parquet
from rlds_cli.archives.formats import zarr_stores as zarr_stores
