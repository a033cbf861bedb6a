"""TorchRL: TensorDicts on disk, and its replay buffers and datasets."""

FORMATS = {"tensordict": "TensorDict"}
