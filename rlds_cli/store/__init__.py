"""The Zarr v3 group on disk: names, arrays, writing, digests, manifest, publishing, opening."""
