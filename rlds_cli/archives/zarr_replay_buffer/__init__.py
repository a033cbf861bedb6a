"""Replay buffers in Zarr, of Diffusion Policy, UMI and DP3, which `read` reads and `write` writes."""
