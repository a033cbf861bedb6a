"""Diffusion Policy, UMI and DP3: replay buffers in Zarr."""

FORMATS = {"zarr-replay-buffer": "ZarrReplayBuffer"}
