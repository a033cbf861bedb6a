"""A dataset as TorchRL's own datasets are: a replay buffer of offline data."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from tensordict import TensorDict
from torchrl.data.datasets.common import BaseDatasetExperienceReplay
from torchrl.data.replay_buffers import TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler, SamplerWithoutReplacement
from torchrl.data.replay_buffers.storages import TensorStorage
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter
from torchrl.envs.utils import _classproperty

from rlds_cli import keep, registry
from rlds_cli.archives.torchrl.dropin import mapping, sampling, specs
from rlds_cli.archives.torchrl.dropin.contents import read_only
from rlds_cli.archives.torchrl.dropin.errors import BadArgument
from rlds_cli.archives.torchrl.dropin.sampling import Draws
from rlds_cli.archives.torchrl.dropin.storage import DatasetStorage, opened
from rlds_cli.archives.torchrl.dropin.transitions import Transitions
from rlds_cli.base import settings
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import RldsError
from rlds_cli.loader.fields.fields import Names
from rlds_cli.loader.windows.windows import Anchors

_PLAIN_DRAWS = (RandomSampler, SamplerWithoutReplacement)  # they give an index and nothing else
# Arguments of TorchRL's datasets, and the values under which they ask for what is done here anyway.
_ALIKE: dict[str, tuple[Any, ...]] = {
    "direct_download": (None, True, False),
    "from_env": (False, True),
    "use_truncated_as_done": (True,),
    "terminate_on_end": (None, True),
    "load_from_local_minari": (False,),
    "decode_video": (True,),
    "rehydrate": (False, True),
    "key_map": (None,),
}
_HOW_TO_CONVERT = ("num_workers", "num_procs", "mp_start_method")  # they change nothing in the data


class RldsExperienceReplay(BaseDatasetExperienceReplay):  # type: ignore[misc]  # untyped
    """A dataset of rlds, as a dataset of TorchRL: ``load_dataset("rlds:d4rl/hopper-medium-v2", batch_size=256)``.

    Transitions are read from the dataset's own files; there is no second copy, and nothing can be written. Every
    transition has the dataset's fields, ``done``, ``terminated`` and ``truncated`` at the root, all False,
    ``("next", "done")``, and ``episode``. A step whose next observation is not known is not a transition, and the one
    before it has ``("next", "done")``. Where a step terminates and no final observation is recorded,
    a field ``("next", "observed")`` is False at this step.

    Datasets of V-D4RL, OpenML and Atari DQN have the keys of TorchRL's classes, see `libraries`.

    Parameters
    ----------
    dataset_id : str, path or Dataset
        An id, an alias, the directory of a dataset, or a dataset that is open, such as a selection.
    batch_size : int, optional
        Of `sample` and of iteration.
    sampler, writer, collate_fn, pin_memory, prefetch, transform
        As of TorchRL's datasets.
    split_trajs : bool
        Whole trajectories: batch size [B, L], padded with zeros, with ``mask`` and ``traj_ids``.
    root : path, optional
        A home beside ``RLDS_HOME``, which downloads go to.
    download : bool or "force", optional
        Download the dataset if it is not here; ``"force"`` does so in any case. True without it, and False in a stream.
    fields : sequence of str or tuple, optional
        Names of fields; all of them without it.
    anchors : {"transitions", "steps"}
        ``steps``: all steps, without any next observations.
    root_reward : bool
        Add ``reward`` at the root, which TorchRL's D4RL datasets have: the reward of the step before, zero at the first
        step of an episode.
    next_info : bool
        Add ``("next", "info")``, which they have as well, where infos are floats: NaN at the last step of an episode,
        after which none are known.
    seed : bool, optional
        Add ``seed``, the number of the archive's file, which TorchRL's RoboSet has. By default RoboSet's datasets have
        it, if all fields are wanted.
    num_slices, slice_len : int, optional
        Sample slices of trajectories: so many in a batch, or of so many steps. Without ``batch_size`` an iteration
        gives slices of ``slice_len`` one by one; otherwise whole trajectories, ``num_slices`` or one at a time.
    strict_length : bool
        False takes also trajectories that are shorter than a slice: a batch has fewer steps then. ``strict_len`` is
        the same.
    pad : float or bool, optional
        Fill them up with this value, True for 0. ``("collector", "mask")`` is False in what was filled up.
    replacement : bool, optional
        False: every transition, or a slice of every trajectory, once before one comes again. True without it, unless
        ``shuffle=False`` or ``streaming=True``.
    shuffle : bool
        False: transitions, or trajectories, in the order of the dataset.
    streaming : bool
        Slices of trajectories, each trajectory once, never a download: the id must be on this disk; rows of a dataset
        at an address are fetched when they are needed. Without ``num_slices`` and ``slice_len``, a batch is one slice.
    totensor : bool
        Images as ``float32`` in [0, 1] with channels first, as ``ToTensorImage`` makes them, unless ``transform`` has
        one. It comes after ``transform``.
    image_size : int or (int, int), optional
        Resize images to so many pixels, or to this height and width, bilinear and antialiased.
    index : bool
        False leaves out ``index``, the numbers of the samples: a buffer that is filled by a collector has none, and
        ``OfflineToOnlineReplayBuffer`` needs the same keys from both.
    **more
        Arguments of ``ReplayBuffer`` (``generator``, ``sample_unit``, ``checkpointer``), and those of TorchRL's other
        datasets whose values ask for what is done here anyway, such as ``direct_download=True``.

    Raises
    ------
    BadArgument
        An argument of another dataset that asks for something else, or arguments that contradict each other.
    NotHere, NoSuchDataset, DownloadFailed
        The dataset is not here, and cannot or may not be downloaded.
    """

    def __init__(
        self,
        dataset_id: StrPath | Dataset,
        batch_size: int | None = None,
        sampler: Any = None,
        writer: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        split_trajs: bool = False,
        *,
        root: StrPath | None = None,
        download: bool | Literal["force"] | None = None,
        fields: Names | None = None,
        anchors: Anchors = "transitions",
        root_reward: bool = False,
        next_info: bool = False,
        seed: bool | None = None,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        pad: float | bool | None = None,
        replacement: bool | None = None,
        shuffle: bool = True,
        streaming: bool | None = None,
        totensor: bool = False,
        image_size: int | Sequence[int] | None = None,
        index: bool = True,
        **more: Any,
    ) -> None:
        for name in _HOW_TO_CONVERT:
            more.pop(name, None)
        for name in _ALIKE.keys() & more.keys():
            value = more.pop(name)
            if value not in _ALIKE[name]:
                raise BadArgument(
                    f"{name}={value!r} is not possible: datasets of rlds are read from their archives in one way.",
                    hint="docs/reference/ted.md describes the values",
                )
        strict = more.pop("strict_len", True) and strict_length
        draws = Draws(num_slices, slice_len, strict, pad, replacement, shuffle, bool(streaming))
        if sampler is not None and (draws.of_slices or draws != Draws(replacement=replacement)):
            raise BadArgument("sampler= with arguments that describe another one.", hint="either of them")
        if split_trajs and draws.of_slices:
            raise BadArgument("split_trajs=True gives whole trajectories, and no slices.", hint="one of them")
        if streaming and download:
            raise BadArgument(f"streaming=True with download={download!r}.", hint="one of them")
        self.root = root
        if isinstance(dataset_id, Dataset):
            dataset = dataset_id
        else:
            dataset = opened(dataset_id, fetch=not streaming if download is None else download, root=root)
        self.dataset_id = dataset.id
        storage = DatasetStorage(
            dataset,
            fields=fields,
            anchors=anchors,
            root_reward=root_reward,
            next_info=next_info,
            seed=seed,
            split_trajs=split_trajs,
        )
        to_tensor = totensor and not sampling.makes_tensors(transform)
        images = sampling.images(dataset, storage.source.fields, image_size, to_tensor)
        self._draws = draws if sampler is None and not split_trajs else None
        super().__init__(
            storage=storage,
            batch_size=batch_size,
            sampler=draws.sampler() if sampler is None else sampler,
            writer=ImmutableDatasetWriter() if writer is None else writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            **more,
        )
        if images is not None:
            self.append_transform(images)
        self._source = storage.source
        self._as_read, self._lead, self._index = collate_fn is None, storage.source.size[1:], index

    # -- the dataset

    @property
    def dataset(self) -> Dataset:
        """The dataset, for all that rlds can do with it."""
        return self._source.dataset

    @property
    def data_path(self) -> Path:
        """Directory of the dataset."""
        return self.dataset.path

    @property
    def data_path_root(self) -> Path:
        """Directory of the dataset, too: a selection of episodes has none of its own."""
        return self.dataset.path

    def _is_downloaded(self) -> bool:
        return self.dataset.path.is_dir()

    @_classproperty  # type: ignore[untyped-decorator]
    def available_datasets(cls) -> list[str]:
        """Ids of all datasets that can be downloaded; of the class, too."""
        return [entry.id for entry in registry.search()]

    def delete(self) -> None:
        """Remove the dataset that was opened from the disk; its archive stays, as with ``rlds rm``.

        It must lie in ``root``, or without ``root`` in ``RLDS_HOME``.

        Raises
        ------
        RldsError
            It lies elsewhere, could not be made again, or is a selection; nothing is removed.
        """
        id, path, own = self.dataset.id, self.dataset.path, settings.read(self.root).home
        if self.dataset.is_selection:
            raise RldsError(f"{id}: a selection has no files of its own. Nothing was removed.")
        if not path.is_relative_to(own / "datasets"):
            raise RldsError(
                f"{id} was opened from {path}, which is not below {own}. Nothing was removed.",
                hint=f"{_rm(id, path)} removes it, for all who use it",
            )
        (planned,) = keep.plan_removal([id], home=own)
        if planned.lost:
            raise RldsError(
                f"{id} could not be made again: {planned.lost}. Nothing was removed.",
                hint=f"{_rm(id, path)} --yes removes it all the same",
            )
        keep.remove([id], home=own)

    # -- specs

    @property
    def observation_spec(self) -> Any:
        """Spec of the fields observed at t and at t+1, a Composite."""
        return specs.observation_spec(self.dataset, self._source.fields)

    @property
    def action_spec(self) -> Any:
        """Spec of actions."""
        return specs.action_spec(self.dataset, self._source.fields)

    @property
    def reward_spec(self) -> Any:
        """Spec of rewards."""
        return specs.reward_spec(self.dataset, self._source.fields)

    @property
    def done_spec(self) -> Any:
        """Spec of the flags, a Composite."""
        return specs.done_spec()

    @property
    def specs(self) -> Any:
        """All specs, as ``env.specs`` has them."""
        return specs.specs(self.observation_spec, self.action_spec, self.reward_spec)

    @property
    def max_outcome_val(self) -> int:
        """The largest class of a table of OpenML, in ``y``."""
        if "y" not in self._source.names:
            raise AttributeError(f"{self.dataset.id} is not a table of OpenML: it has no y")
        return int(self._storage[:]["y"].max())

    @property
    def metadata(self) -> dict[str, Any]:
        """Specs of observations and actions under the names that TorchRL's Minari datasets give them."""
        seen = self.observation_spec
        return {
            "observation_space": seen["observation"] if "observation" in seen.keys() else None,  # noqa: SIM118
            "action_space": self.action_spec,
        }

    # -- samples

    def sample(self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None) -> Any:
        """Sample a batch, see ``TensorDictReplayBuffer.sample``."""
        size = self._batch_size if batch_size is None else batch_size
        if (
            type(self._sampler) not in _PLAIN_DRAWS
            or not self._plain_read
            or include_info is not None
            or size is None
            or size != (self._batch_size or size)
        ):
            made = super().sample(batch_size, return_info, include_info)
            self._finish(made[0] if return_info else made)
            return made
        # The same draw, without what other samplers, prefetching and writers need: a third of the time of a batch.
        with self._replay_lock:
            index, info = self._sampler.sample(self._storage, size)
        lead = self._lead
        beside = index.view(-1, *(1,) * len(lead)).expand(-1, *lead) if lead else index
        data = self._source.tensordict(index.numpy(), {"index": beside} if self._index else None)
        if len(self._transform):
            data = self._transform(data)
        return (data, {**info, "index": index}) if return_info else data

    def __iter__(self) -> Iterator[Any]:
        if self._batch_size is not None or self._draws is None:
            yield from super().__iter__()
            return
        assert isinstance(self._source, Transitions)  # trajectories are not drawn so
        sampler, size = self._draws.one_by_one(self._sampler, int(self._source.counts.max()))
        buffer = TensorDictReplayBuffer(
            storage=self._storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter(),
            batch_size=size,
            collate_fn=self._collate_fn,
            transform=self._transform,
            pin_memory=self._pin_memory,
            generator=self._rng,
        )
        try:
            for made in buffer:
                self._finish(made)
                yield made
        finally:
            self._storage._attached_entities.remove(buffer)  # which would be kept as long as the storage

    def _finish(self, made: Any) -> None:
        """Bring what TorchRL sampled to the form that the arguments ask for."""
        if not self._index:
            made.pop("index", None)
        if self._draws is not None and self._draws.value is not None:
            sampling.fill(made, self._draws.value)

    @property
    def _plain_read(self) -> bool:
        return (
            self._as_read
            and not self._prefetch
            and not self._pin_memory
            and self._sample_unit is None
            and not self._service_shutdown
            and getattr(self._storage, "source", None) is self._source
        )

    # -- nothing is written

    def extend(self, tensordicts: Any, *, update_priority: bool | None = None) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def add(self, data: Any) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def empty(self, empty_write_count: bool = True) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise read_only(self.dataset)

    def set_(self, key: Any, value: Any) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def set_at_(self, key: Any, value: Any, index: Any) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> NoReturn:
        """Refuse: datasets are read-only."""
        raise read_only(self.dataset)

    # -- preprocess

    def preprocess(
        self,
        fn: Callable[[TensorDict], TensorDict],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
        num_frames: int | None = None,
        dest: StrPath,
    ) -> TensorStorage:
        """Apply a function to all transitions, and write the results to ``dest``, as TorchRL's datasets do.

        ``fn`` gets TensorDicts of its own, so that it may change them in place. ``dest`` appears when all is done; if
        ``fn`` fails, nothing is left. ``rlds_cli.preprocess.run`` makes a dataset instead, and resumes.

        Parameters
        ----------
        fn : callable
            From a TensorDict to another with the same batch size: of one transition, with batch size [], and of chunks.
        dim : int
            0.
        num_workers : int, optional
            Processes; None and below 2 for this one.
        chunksize, num_chunks : int, optional
            Transitions in a call of ``fn``, 0 for one without an axis; or number of calls. By default a call gets
            at most 65,536 transitions and about 64 MiB.
        pool : multiprocessing.Pool, optional
            Processes to use instead. A pool waits for ever if one of its processes is killed.
        generator : torch.Generator, optional
            Gives a seed, from which a function that draws (by torch, NumPy or ``random``) is seeded for each of its
            calls: the same chunks then get the same numbers, whatever process works on them. Without it torch's own
            generator gives the seed.
        index_with_generator : bool
            Changes nothing: how TorchRL divides the source.
        max_tasks_per_child, worker_threads
            Of these processes.
        mp_start_method : str, optional
            Changes nothing: the processes are spawned.
        pbar : bool
            Show progress.
        num_frames : int, optional
            Only so many transitions, from the first one on.
        dest : path
            Directory to make: a memory-mapped TensorDict.

        Returns
        -------
        TensorStorage
            For ``ReplayBuffer(storage=...)``.

        Raises
        ------
        BadArgument
            ``dest`` already exists, or an argument that is not possible.
        BadResult
            Results differ in their keys or their batch size.
        Unfinished
            Two processes that worked on the same transitions died. Nothing is left in ``dest``.
        """
        if dim != 0:
            raise BadArgument(f"preprocess(dim={dim}): dim is 0, transition after transition.")
        count = len(self._source) if num_frames is None else num_frames
        job = mapping.Job(self._source, fn, count, mapping.seed_from(generator))
        workers = mapping.MappingWorkers(num_workers or 0, pool, max_tasks_per_child, worker_threads)
        written = mapping.write(job, Path(dest), workers, chunksize=chunksize, num_chunks=num_chunks, pbar=pbar)
        return TensorStorage(written)


def _rm(id: str, path: Path) -> str:
    """Return the command that removes a dataset in a home."""
    home = settings.read().home
    return f"rlds rm {id}" + ("" if path.is_relative_to(home) else f" --home {shlex.quote(str(path.parents[2]))}")
