"""A dataset as a storage of TorchRL's replay buffers."""

from __future__ import annotations

import json
import os
from errno import ENOENT
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torchrl.data.replay_buffers.checkpointers import TensorStorageCheckpointer
from torchrl.data.replay_buffers.storages import TensorStorage

from rlds_cli.archives.torchrl.dropin.contents import Contents, SelectedContents, read_only
from rlds_cli.archives.torchrl.dropin.errors import NoSuchDataset, NotHere, OtherDataset
from rlds_cli.archives.torchrl.dropin.trajectories import Trajectories
from rlds_cli.archives.torchrl.dropin.transitions import Transitions, as_numbers, in_shape
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import DatasetNotFound, UnknownDataset
from rlds_cli.loader.fields.fields import Names
from rlds_cli.loader.windows.windows import Anchors
from rlds_cli.make import download

REFERENCE = "rlds.json"  # in a directory of ReplayBuffer.dumps


class ReferenceCheckpointer(TensorStorageCheckpointer):  # type: ignore[misc]  # untyped
    """Writes which dataset it is, not its rows; reading checks that it is the same one."""

    def dumps(self, storage: DatasetStorage, path: str | Path) -> None:
        """Write ``rlds.json`` with id and fingerprint."""
        Path(path).mkdir(exist_ok=True, parents=True)
        (Path(path) / REFERENCE).write_text(json.dumps(storage.reference, indent=2) + "\n")

    def loads(self, storage: DatasetStorage, path: str | Path) -> None:
        """Check that the dump is of this storage's dataset.

        Raises
        ------
        OtherDataset
            It is of another one, or of other rows.
        FileNotFoundError
            There is no dump.
        """
        file = Path(path) / REFERENCE
        if not Path(path).exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
        if not file.is_file():
            raise OtherDataset(
                f"{path} holds the rows of a buffer, and the storage is the dataset {storage.reference['id']}.",
                hint=f"rlds import {Path(path).parent} --name local/NAME makes a dataset of such a dump",
            )
        storage.check(json.loads(file.read_text()), path)


class DatasetStorage(TensorStorage):  # type: ignore[misc]  # untyped
    """The transitions of a dataset as a read-only storage: ``ReplayBuffer(storage=DatasetStorage("d4rl/..."))``.

    Rows are read from the dataset's own files. ``storage[:]`` is a TensorDict that reads a field when it is asked for.

    Parameters
    ----------
    dataset : Dataset, str or path
        An id is downloaded if it is not here.
    fields : sequence of str or tuple, optional
        Names of fields; all of them without it.
    anchors : {"transitions", "steps"}
        ``steps``: all steps, also those whose next observation is not known, without any next observations.
    root_reward : bool
        Add ``reward`` at the root: that of the step before, zero at the first step of an episode.
    next_info : bool
        Add those of the next step to infos that are floats: NaN at the last step of an episode, where none are known.
    seed : bool, optional
        Add ``seed``, the number of the archive's file; by default RoboSet's datasets have it, if all fields are wanted.
    split_trajs : bool
        Whole trajectories [E, L], padded with zeros, with ``mask`` and ``traj_ids``.
    root : path, optional
        A home beside ``RLDS_HOME``, which downloads go to.
    """

    _default_checkpointer = ReferenceCheckpointer
    supports_conditional_update = False

    def __init__(
        self,
        dataset: Dataset | StrPath,
        *,
        fields: Names | None = None,
        anchors: Anchors = "transitions",
        root_reward: bool = False,
        next_info: bool = False,
        seed: bool | None = None,
        split_trajs: bool = False,
        root: StrPath | None = None,
    ) -> None:
        ds = dataset if isinstance(dataset, Dataset) else opened(dataset, root=root)
        added: dict[str, Any] = {"root_reward": root_reward, "next_info": next_info, "seed": seed}
        transitions = Transitions(ds, fields=fields, anchors=anchors, **added)
        self.source = Trajectories(transitions) if split_trajs else transitions
        self._count = len(self.source)
        super().__init__(Contents.of(self.source))
        # All samplers then take the last row for the end of a trajectory, and none continues at row 0.
        self._set_last_cursor(len(self.source) - 1)

    @property
    def dataset(self) -> Dataset:
        """The dataset."""
        return self.source.dataset

    @property
    def reference(self) -> dict[str, Any]:
        """The description that ``dumps`` writes."""
        fingerprint = self.dataset.fingerprint
        kind = type(self.source).__name__.lower()
        return {"id": self.dataset.id, "fingerprint": fingerprint, "holds": kind, "len": len(self.source)}

    def check(self, reference: Any, path: str | Path) -> None:
        """Refuse the reference of another dataset, or of other rows of it."""
        mine = self.reference
        if not isinstance(reference, dict) or {k: reference.get(k) for k in mine if k != "id"} != {
            k: v for k, v in mine.items() if k != "id"
        }:
            raise OtherDataset(f"{path} is a dump of {reference}, and the storage is {mine}.")

    # As in TensorStorage, without the locks and wrappers that storages need which change: a quarter of a batch's time.

    def __len__(self) -> int:
        return self._count

    def _rand_given_ndim(self, batch_size: int) -> torch.Tensor:
        return torch.randint(0, self._count, (batch_size,), generator=self._rng)

    def get(self, index: Any) -> Any:
        """Return transitions: of an index, a slice, a list, a mask; or a whole field by its key."""
        if isinstance(index, slice) and index == slice(None):
            return Contents.of(self.source)  # a new one: what a transform sets in it does not stay
        if isinstance(index, tuple) and len(index) == 1:
            return self.get(index[0])
        if index is None or index is Ellipsis or isinstance(index, str | tuple | bool) or np.ndim(index) > 1:
            return self._storage[index]
        numbers = as_numbers(index, len(self))
        return in_shape(self.source.tensordict(numbers.reshape(-1)), numbers)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, tuple) and len(item) == 1 and isinstance(item[0], torch.Tensor) and item[0].ndim == 1:
            # A sampler of slices asks for rows to look at their flags, which would decode all their images.
            return Contents.of(SelectedContents(self.source, as_numbers(item[0], len(self))))
        return self.get(item)

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def _empty(self) -> NoReturn:
        raise read_only(self.dataset)

    def state_dict(self) -> dict[str, Any]:
        """Return the reference to the dataset, not its rows."""
        return {"rlds": self.reference}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state is of this dataset.

        Raises
        ------
        OtherDataset
            It is of another one.
        """
        self.check(state_dict.get("rlds"), "The state")


def opened(ref: StrPath, *, fetch: bool | Literal["force"] = True, root: StrPath | None = None) -> Dataset:
    """Return a dataset that is in the home ``root`` or in one of the usual homes; else download it, to ``root``.

    Raises
    ------
    NotHere
        It is not here, and not to be downloaded.
    NoSuchDataset
        There is none of this id.
    """
    try:
        if fetch == "force":
            return download(str(ref), force=True, home=root)
        for place in (root, None):
            try:
                return open_dataset(ref, home=place)
            except DatasetNotFound:
                if place is None and not fetch:
                    raise
        return download(str(ref), home=root)
    except (DatasetNotFound, UnknownDataset) as e:
        kind = NotHere if isinstance(e, DatasetNotFound) else NoSuchDataset
        raise kind(e.message, hint=e.hint) from e
