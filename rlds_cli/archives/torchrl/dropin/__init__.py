"""Datasets as TorchRL's own: ``load_dataset("rlds:d4rl/hopper-medium-v2")``, a replay buffer and a storage.

>>> import rlds_cli.archives.torchrl.dropin  # doctest: +SKIP
>>> from torchrl.data.datasets import load_dataset  # doctest: +SKIP
>>> rb = load_dataset("rlds:d4rl/hopper-medium-v2", batch_size=256)  # doctest: +SKIP
>>> rb.sample()["next", "reward"].shape  # doctest: +SKIP
torch.Size([256, 1])

Importing this module registers the prefix ``rlds``. docs/coming-from/torchrl.md describes what is given.
"""

from rlds_cli.errors import MissingPackage

try:
    from torchrl.data.datasets import register_dataset
except ModuleNotFoundError as e:
    if (e.name or "").partition(".")[0] not in ("torchrl", "tensordict", "torch"):
        raise
    raise MissingPackage(f"{e.name} is not installed.", hint="pip install torchrl==0.14.1") from e

from rlds_cli.archives.torchrl.dropin.contents import Contents
from rlds_cli.archives.torchrl.dropin.errors import ReadOnly
from rlds_cli.archives.torchrl.dropin.replay import RldsExperienceReplay
from rlds_cli.archives.torchrl.dropin.storage import DatasetStorage

__all__ = ["Contents", "DatasetStorage", "ReadOnly", "RldsExperienceReplay"]

PREFIX = "rlds"

register_dataset(PREFIX, RldsExperienceReplay, replace=True)
