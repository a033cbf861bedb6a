"""Datasets as users open them, and selections of their episodes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, NoReturn, overload

import numpy as np
import numpy.typing as npt

from rlds_cli.base import counterparts, refs
from rlds_cli.base.array_types import Array, IntArray
from rlds_cli.base.integers import within
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import is_below, join_name
from rlds_cli.dataset import layouts, partition, selection
from rlds_cli.dataset.batch import Batch
from rlds_cli.dataset.layouts import Layout
from rlds_cli.dataset.opening import open_at
from rlds_cli.dataset.rewards import other_rewards
from rlds_cli.dataset.scores import reference_scores
from rlds_cli.dataset.selection import EpisodeColumns, StoredStats, no_field
from rlds_cli.dataset.shortcuts import Shortcuts
from rlds_cli.errors import InvalidArgument, NoReward, UnknownField
from rlds_cli.store import History, Manifest, Stats, Store, open_store
from rlds_cli.ted import FLAGS, REWARD, Field

if TYPE_CHECKING:
    import gymnasium

    from rlds_cli.dataset.decisions.applying import Given
    from rlds_cli.dataset.decisions.journal import DecisionJournal
    from rlds_cli.dataset.decisions.planning import DecisionPlan
    from rlds_cli.dataset.history import Version
    from rlds_cli.dataset.provenance import TransitionSource

ArrayLike = npt.ArrayLike


def open_dataset(
    ref: str | os.PathLike[str],
    *,
    home: StrPath | None = None,
    cache: int | str | None = None,
    timeout: float | None = None,
    fill: bool = True,
) -> Dataset:
    """Open a dataset that is on this disk, without network, lock and write; or one at an address.

    Of a dataset at an address, the manifest and the episode table are fetched; rows arrive in blocks of 64 KiB when
    they are read, are checked, and stay in the home. See ``docs/guides/remote.md``. A dataset that is in a home with
    the same content is opened there.

    Parameters
    ----------
    ref : str or path
        An id (``d4rl/hopper-medium-v2``, ``...@norm``), the directory of a dataset, or an address:
        ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH``, ``hf://datasets/OWNER/NAME``, ``https://HOST/PATH/``, or a directory
        that a dataset was pushed to. ``REF#v3``, ``REF#TAG`` and ``REF#rlds1:...`` open a version of it, by number, tag
        or fingerprint; else it is the newest.
    home : path, optional
        A home to look into instead of ``RLDS_HOME``; ``RLDS_PATH`` is searched as well.
    cache : int or str, optional
        Of a dataset at an address: bytes that blocks in the home may take, such as ``"200GiB"``. Those that were not
        used for longest are evicted. Without it, as many as the disk has; 0 keeps blocks in memory, and few.
    timeout : float, optional
        Of a dataset at an address: seconds to wait for a block.
    fill : bool
        Of a dataset at an address: after a loader's first batch, have what is missing of its fields arrive in the
        background, if its sampler draws from all of them, and if they fit the cache and the disk; see
        docs/reference/remote-loader.md. False fetches what is read alone.

    Raises
    ------
    DatasetNotFound
        The dataset is in none of the homes, or not at the address; or there is no such version or tag, or it was freed.
    DamagedDataset, NewerFormat
        The dataset is damaged, or written by a later version.
    WrongFingerprint
        The address has other content than it pins.
    DownloadFailed, WrongHash, Offline
        The store does not give it. Reading rows raises these, too.

    Examples
    --------
    >>> ds = open_dataset("d4rl/hopper-medium-v2")  # doctest: +SKIP
    >>> ds.column("observation").shape  # doctest: +SKIP
    (1002187, 11)
    """
    return Dataset(open_at(refs.parse(ref), home, cache=cache, timeout=timeout, fill=fill))


class Dataset(Shortcuts):
    """Episodes of transitions in TED form, on disk; ``len()`` counts transitions.

    Selections (``select``, ``split``) are datasets too: the same files, fewer episodes.

    Attributes
    ----------
    schema : mapping of str to Field
        All fields by name.
    episodes : mapping of str to array [num_episodes]
        ``start length num_transitions num_observed end num_done source row seed total_reward ...`` and one bool
        column per named split; ``end`` as text, ``start`` as the first row in ``column()``.
    stats : mapping of str to Stats
        Mean, std, min, max, q01, q99 per element, float64, over the steps of the episodes selected.
    """

    def __init__(self, store: Store, index: IntArray | None = None, *, how: Mapping[str, Any] | None = None) -> None:
        self.store = store
        self._how: Mapping[str, Any] = how or {}
        self._selected = index is not None
        self._index = index
        self.episodes = EpisodeColumns(store, self._index)

    # -- properties

    @property
    def id(self) -> str:
        """``family/name[@variant]``."""
        return self.store.manifest.id

    @property
    def path(self) -> Path:
        """Directory of the dataset, a Zarr v3 group."""
        return self.store.path

    @property
    def manifest(self) -> Manifest:
        """Manifest of the whole dataset."""
        return self.store.manifest

    @property
    def encoding(self) -> str:
        """Encoding of the rows: ``memmap`` or ``zarr``."""
        return self.manifest.encoding

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content: ``rlds1:`` and 64 digits. That of a selection is that of a copy of its episodes."""
        return self.store.fingerprint(self._index if self._selected else None)

    @property
    def selected_by(self) -> Mapping[str, Any]:
        """What a user asked for of a selection, as the log of versions says it: ``where``, ``split``, ..."""
        return self._how

    @property
    def is_selection(self) -> bool:
        """True if this is a selection of the episodes of a dataset."""
        return self._selected

    @property
    def version(self) -> int:
        """Number of the version that is open."""
        return self.store.version

    @property
    def versions(self) -> Sequence[Version]:
        """The versions of the dataset on this disk, oldest first."""
        from rlds_cli.dataset import history  # changes are not loaded to read a dataset

        return history.versions_of(History.of(self.path).path)

    @property
    def tags(self) -> Mapping[str, int]:
        """Number of the version of every tag of the dataset."""
        return History.of(self.path).tags

    def tag(self, name: str, *, force: bool = False) -> None:
        """Give this version a name, by which ``open_dataset("ID#NAME")`` opens it.

        Parameters
        ----------
        name : str
            A letter, then letters, digits, ``.``, ``_`` and ``-``; not ``v`` and a number.
        force : bool
            Also a name that another version has.

        Raises
        ------
        InvalidId
            The name cannot be a tag.
        InvalidArgument
            This is a selection, which is not a version; or the dataset is at an address.
        NameTaken
            Another version has the name.
        NoPermission
            The directory of the dataset may not be written.
        """
        if self._selected:
            raise InvalidArgument(f"{self.id}: a selection cannot be tagged.", hint="tag the whole dataset")
        self.store.table.check_changeable()
        History.of(self.path).tag(name, self.version, force=force)

    def refresh(self) -> Dataset:
        """Return this dataset at its newest version: itself if nothing was committed since, or if it does not grow.

        Raises
        ------
        InvalidArgument
            This is a selection, and there is a newer version: refresh the whole dataset, and select again.
        """
        newest = self.store.newest()
        if newest is self.store:
            return self
        if self._selected:
            raise InvalidArgument(f"{self.id}: a selection is not refreshed.", hint="ds.refresh().select(...)")
        return Dataset(newest)

    @property
    def schema(self) -> Mapping[str, Field]:
        """Fields by name."""
        return self.store.fields

    @property
    def sources(self) -> tuple[Mapping[str, Any], ...]:
        """Files of the archive (``file size sha256 url revision``); ``episodes["source"]`` indexes them."""
        return self.store.sources

    @property
    def num_rows(self) -> int:
        """Number of rows of each column, over all episodes of the store."""
        return self.manifest.counts.rows

    @property
    def num_episodes(self) -> int:
        """Number of selected episodes."""
        return len(self.episodes)

    @cached_property
    def num_steps(self) -> int:
        """Number of steps of the selected episodes."""
        return int(self.episodes["length"].sum())

    @cached_property
    def num_transitions(self) -> int:
        """Number of steps whose next observation is known, or not needed because they terminate."""
        return int(self.episodes["num_transitions"].sum())

    def __len__(self) -> int:
        return self.num_transitions

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "A dataset is not iterated: use rlds_cli.loader.Loader(ds) for batches, ds.episode(k) for episodes"
        )

    def __repr__(self) -> str:
        selected = "" if not self._selected else f" of {self.manifest.counts.episodes:,}"
        return (
            f"<Dataset {self.id}: {self.num_steps:,} steps, {self.num_episodes:,}{selected} episodes, {self.encoding}>"
        )

    @cached_property
    def stats(self) -> Mapping[str, Stats]:
        """Statistics per field over the steps of the selected episodes; computed on first use for a selection.

        An unknown field, or one without statistics (text, images), raises UnknownField.
        """
        stats = self.store.stats(self._index) if self._selected else self.manifest.stats
        return StoredStats(stats, self.schema, self.id)

    @cached_property
    def observation_space(self) -> Any:
        """Gymnasium space of observations: the archive's, else unbounded boxes of the stored shapes."""
        return self._space("observation")

    @cached_property
    def action_space(self) -> Any:
        """Gymnasium space of actions."""
        return self._space("action")

    def _space(self, name: str) -> Any:
        from rlds_cli.ted import Space

        described = self.manifest.spaces.get(name) or Space.inferred(tuple(self.schema.values()), name).form
        if described is None:
            raise UnknownField(f"{self.id} has no {name}.")
        return Space(described).build()

    # -- values

    def field(self, key: str | tuple[str, ...]) -> Field:
        """Return the field called ``key``.

        Raises
        ------
        UnknownField, NoReward
            There is no such field; the message lists all fields.
        """
        name = join_name(key)
        if name in self.schema:
            return self.schema[name]
        if name == REWARD and (named := other_rewards(self.id, self.schema)) is not None:
            raise named
        if name == REWARD:
            raise NoReward(
                f"{self.id} has no reward.",
                hint="leave it out of fields=, or compute it from goals: rlds preprocess ID --fn reward_from_goal",
            )
        raise no_field(name, self.schema, self.id)

    def column(self, key: str | tuple[str, ...], *, gaps: bool = False) -> Array:
        """Return all rows of an array field, [num_rows, ...], read-only; T+1 rows per episode.

        Mapped from the file; a zarr-encoded dataset is decoded into memory on first use, and kept. ``ds[:][key]`` has
        one value for each transition, of a selection, too.

        Parameters
        ----------
        gaps : bool
            Return other rows as well: of a selection those of the whole dataset; and rows of no episode, which
            selections that were saved, trims, drops and merges may have between episodes, with values that mean
            nothing. Episode ``k`` begins at row ``ds.episodes["start"][k]`` in any case.

        Raises
        ------
        UnknownField
            There is no such field, or it holds text or encoded frames; ``gather`` reads those.
        InvalidArgument
            ``gaps`` is False, and this is a selection, or the dataset has rows of no episode.
        """
        f = self.field(key)
        if f.kind != "array":
            raise UnknownField(
                f"{f.name} of {self.id} is stored as {f.codec or 'text'}.", hint=f'ds.gather("{f.name}", rows)'
            )
        some = self._selected and not np.array_equal(self.episodes.index, self.store.table.numbers)
        if not gaps and (some or self.store.table.has_gaps):
            whose = "all episodes, and some are selected" if some else "no episode, such as dropped ones"
            raise InvalidArgument(
                f"{self.id}: {f.name} has rows of {whose}.",
                hint=f'ds[:]["{f.name}"] has the values of the transitions, ds.episode(k) those of an episode; or '
                'gaps=True, with ds.episodes["start"]' + ("" if some else "; rlds compact removes such rows"),
            )
        return self.store.rows(f.name)

    def gather(self, key: str | tuple[str, ...], rows: IntArray) -> Array:
        """Read the values of any field at ``rows`` [n] -> [n, ...]; frames decoded, text as str or None.

        ``task`` is what is to be done at these steps, in words: ``task_at`` of a dataset that has it, else the text of
        the episode. ``subtask`` is looked up in the intervals of the episode column ``subtasks``.
        """
        from rlds_cli.dataset.tasks import Tasks

        name = join_name(key)
        if name in Tasks.NAMES and name in (tasks := Tasks(self.store)).told:
            return tasks.gather(rows, name)
        return self.store.gather(self.field(key).name, rows)

    def episode(self, k: int) -> Batch[Array]:
        """Return episode ``k`` as a batch of its T steps: all fields, as NumPy arrays in the archive's dtypes.

        ``next/observed`` [T, 1] is added if the final observation is not recorded; and ``task`` and ``subtask`` [T],
        the texts of each step, where the dataset has any.
        """
        from rlds_cli.dataset.provenance import EpisodeOrigin
        from rlds_cli.dataset.tasks import Tasks

        k = within(k, self.num_episodes, f"episodes in {self.id}")
        length = int(self.episodes["length"][k])
        batch = self._read(np.full(length, k), np.arange(length), list(self.schema))
        if self.episodes["num_observed"][k] == length:
            batch["next/observed"] = (np.arange(length) < length - 1)[:, None]
        for name in (tasks := Tasks(self.store)).told:
            batch[name] = tasks.gather(int(self.episodes["start"][k]) + np.arange(length), name)
        return batch.told(origin=EpisodeOrigin(self.store, int(self.episodes.index[k])))

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice | npt.NDArray[Any] | Sequence[int]) -> Batch[Array]: ...

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Any: ...

    def __getitem__(self, index: int | slice | npt.NDArray[Any] | Sequence[int] | str | tuple[str, ...]) -> Any:
        """Return transitions by number, counted over the selected episodes: NumPy arrays in the archive's dtypes.

        ``ds["next/reward"]`` is the field of all transitions [N, ...], as ``ds[:]["next/reward"]`` is, but reads no
        other field.

        Beside the usual fields, ``episode`` [N] is the number of the episode, as `episode` counts. Steps whose next
        observation is not known are not transitions; ``batch.left_out`` is the number of them that a slice skips. If
        such a step ends its episode, ``next/done`` is True at the transition before it, so that splitting behind each
        ``next/done`` yields episodes. ``next/terminated`` and ``next/truncated`` are always the archive's.
        """
        if (name := selection.name_in(index)) is not None:
            return self._field_of_transitions(name)
        if isinstance(index, int | np.integer):
            one = self[np.array([within(index, len(self), f"transitions in {self.id}")])]
            return one.map(lambda values: values[0])
        if isinstance(index, slice):
            wanted = np.arange(*index.indices(len(self)))
        else:
            wanted = selection.numbers(np.asarray(index), len(self), self.id)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"{self.id} has {len(self):,} transitions")
        batch = self._transitions(wanted, self._usual_fields())
        return batch.told(left_out=self._left_out(batch["episode"]) if isinstance(index, slice) else 0)

    def _transitions(self, numbers: IntArray, names: Sequence[str]) -> Batch:
        """Read fields of transitions by number, and the number of the episode of each."""
        episode, step = self._places_of(numbers)
        batch = self._read(episode, step, names)
        if "next/done" in batch:
            batch["next/done"] |= (step == self.episodes["num_transitions"][episode] - 1)[:, None]
        batch["episode"] = episode
        return batch

    def _field_of_transitions(self, name: str) -> Any:
        """Return ``ds["next/reward"]``: only the fields that it needs are read."""
        try:
            _ = self[:0][name]
        except KeyError:
            what = "ds[name] has a field of the transitions"
            if any(is_below(n, name) for n in self.schema):
                raise IndexError(f'{what}; ds.episode(k)["{name}"] has the values of an episode') from None
            if name in self.episodes:
                raise IndexError(f'{what}; ds.episodes["{name}"] has a value for each episode') from None
            raise selection.no_field(name, [*self.schema, *self.episodes], self.id) from None
        needed = [n for n in self._usual_fields() if is_below(n, name) or is_below(f"next/{n}", name)]
        return self._transitions(np.arange(len(self)), needed if name != "next/done" else FLAGS)[name]

    def rows_of(self, index: IntArray) -> IntArray:
        """Return the rows of transitions [n] in ``column()``."""
        episode, step = self._places_of(index)
        rows: IntArray = self.episodes["start"][episode] + step
        return rows

    def _places_of(self, index: IntArray) -> tuple[IntArray, IntArray]:
        """Return episode and step of transitions [n]."""
        ends = np.cumsum(self.episodes["num_transitions"])
        episode = np.searchsorted(ends, index, "right")
        return episode, index - (ends - self.episodes["num_transitions"])[episode]

    def _left_out(self, episode: IntArray) -> int:
        """Count the steps that are not transitions, in these episodes and those between them."""
        if not len(episode):
            return 0
        part = slice(int(episode.min()), int(episode.max()) + 1)
        return int((self.episodes["length"] - self.episodes["num_transitions"])[part].sum())

    def source_of(self, index: int) -> TransitionSource:
        """Trace transition ``index`` back to the archive's file, group and row; ``rlds verify --trace`` compares both.

        Raises
        ------
        IndexError
            There is no such transition.
        RldsError
            The dataset was made in memory: there is no archive.
        """
        from rlds_cli.dataset import provenance

        number = within(index, len(self), f"transitions in {self.id}")
        episode, step = self._places_of(np.array([number]))
        return provenance.source_of_step(self.store, int(self.episodes.index[episode[0]]), int(step[0]))

    def _usual_fields(self) -> list[str]:
        usual = ("observation", "action", "next/observation", REWARD, *FLAGS)
        return [n for n in self.schema if any(is_below(n, u) for u in usual)]

    def _read(self, episode: IntArray, step: IntArray, names: Sequence[str]) -> Batch:
        """Read steps; fields placed ``both`` also as ``next/...``, the last value known where the next one is not."""
        batch, start = Batch(), self.episodes["start"][episode]
        rows = start + step
        after = start + np.minimum(step + 1, self.episodes["num_observed"][episode] - 1)
        for name in names:
            f = self.schema[name]
            batch[name] = f.of_batch(self.gather(name, rows))
            if f.placement == "both" and f"next/{name}" not in self.schema:
                batch[f"next/{name}"] = f.of_batch(self.gather(name, after))
        if all(name in names for name in FLAGS):
            batch["next/done"] = batch["next", "terminated"] | batch["next", "truncated"]
        return batch

    # -- selections

    def select(
        self,
        *positional: Never,
        split: str | None = None,
        where: str | None = None,
        episodes: npt.NDArray[Any] | Sequence[int] | slice | None = None,
    ) -> Dataset:
        """Return some of the episodes, as a dataset that shares the files.

        Parameters
        ----------
        split : str, optional
            A named split of the archive.
        where : str, optional
            A comparison of episode columns, ``"total_reward > 3000 and 'cube' in task"``, see
            `expressions.episodes_where`; ``episode`` is k of ``ds.episode(k)``. A UserWarning is given if it selects
            none or all of the episodes.
        episodes : int array, bool array or slice, optional
            Episodes by number, among those selected so far; the order is kept.

        Raises
        ------
        InvalidExpression
            ``where`` is not such a comparison, compares values of different kinds, names an unknown column, or one
            whose name is not a word (``quality/idle``) without backquotes.
        RldsError
            There is no such split.
        """
        if positional:
            raise InvalidArgument("ds.select(...): its arguments have names.", hint=self._named(positional[0]))
        chosen, warning = selection.matching(self.episodes, split, where, episodes)
        if warning:
            warnings.warn(warning, UserWarning, stacklevel=2)
        given = {"split": split, "where": where}
        picked: dict[str, Any] = {} if episodes is None else {"episodes": True}
        if where is not None and (measures := self.episodes.measures_in(where)):
            sides = {"episodes": self.episodes.index[chosen], "among": self.episodes.index}
            account = {name: selection.runs(index) for name, index in sides.items()}
            picked["measured"] = [{"where": where, "measures": measures, **account}]
        return self._view(chosen, {**{n: v for n, v in given.items() if v is not None}, **picked})

    @property
    def held_out(self) -> int:
        """Number of selected episodes outside of the split ``train``; 0 without such a split."""
        return int((~self.episodes["split/train"]).sum()) if "train" in self.episodes.splits else 0

    def _named(self, given: object) -> str:
        """Return the call of `select` that ``given`` without a name was meant for."""
        if callable(given):
            return "ds.select(episodes=[k for k in range(ds.num_episodes) if keep(ds.episode(k))]), or where="
        if isinstance(given, str):
            return f'ds.select({"split" if given in self.episodes.splits else "where"}="{given}")'
        return "ds.select(episodes=...)"

    @overload
    def split(self, *shares: float, seed: int = 0, by: None = None) -> tuple[Dataset, ...]: ...
    @overload
    def split(self, *, by: str) -> dict[Any, Dataset]: ...
    @overload
    def split(self, *shares: float, seed: int = 0, by: str) -> tuple[Dataset, ...]: ...

    def split(self, *shares: float, seed: int = 0, by: str | None = None) -> tuple[Dataset, ...] | dict[Any, Dataset]:
        """Divide the episodes at random, by shares of their number, or by an episode column.

        Parameters
        ----------
        *shares : float
            The size of each part, as a share of the episodes. Together at most 1; episodes beyond that are in no part.
            One share gives two parts: that share, and the other episodes.
        seed : int
            Of the random order.
        by : str, optional
            An episode column. Without shares, the result is a dict with one part for each value, in sorted order.
            With shares, all episodes of a value are in the same part: the values are shuffled, and a part ends with the
            value that brings its number of episodes nearest to its share. An episode without a value is a value of its
            own without shares (None), and with them.

        Raises
        ------
        InvalidArgument
            Shares are negative, or add up to more than 1; or there are neither shares nor a column.
        UnknownField
            There is no such column.

        Examples
        --------
        >>> train, val = ds.split(0.9)  # doctest: +SKIP
        >>> train, val, test = ds.split(0.8, 0.1, 0.1, by="scene")  # no scene in two parts  # doctest: +SKIP
        >>> ds.split(by="scene")["kitchen"]  # doctest: +SKIP
        """
        groups = None if by is None else partition.groups(self.episodes[by])
        if groups is not None and not shares:
            return {value: self._view(members) for value, members in groups.items()}
        together = None if groups is None else tuple(groups.values())
        parts = partition.divide(self._shares(shares), self.num_episodes, seed, together)
        return tuple(self._view(part) for part in parts)

    def _shares(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """Check the shares of `split`, and complete a single one."""
        name: Any = shares[0] if shares else None
        if isinstance(name, str):
            column = f'ds.split(by="{name}")' if name in self.episodes else "ds.split(0.9)"
            hint = self._named(name) if name in self.episodes.splits else column
            raise InvalidArgument(f'ds.split("{name}"): a part is given by its share, such as 0.9.', hint=hint)
        if not shares or not all(s >= 0 for s in shares) or sum(shares) > 1 + 1e-9:
            raise InvalidArgument(
                f"ds.split{shares}: shares are not negative, and add up to at most 1.", hint="ds.split(0.9, 0.1)"
            )
        return (shares[0], 1 - shares[0]) if len(shares) == 1 else shares

    def _view(self, chosen: IntArray, how: Mapping[str, Any] | None = None) -> Dataset:
        """Select episodes; ``how`` is what a user asked for, as the log of versions says it."""
        said = dict({"episodes": True} if how is None else how)
        if "where" in said and "where" in self._how:
            said["where"] = f"({self._how['where']}) and ({said['where']})"
        if "measured" in said:
            said["measured"] = [*self._how.get("measured", ()), *said["measured"]]
        index = chosen if self._index is None else self._index[chosen]
        return Dataset(self.store, index, how={**self._how, **said})

    # -- changes

    def save(self, name: str, *, force: bool = False, copy: bool = False, home: StrPath | None = None) -> Dataset:
        """Make a dataset ``ID@NAME`` of the selected episodes. It shares the files of rows: no row is copied.

        Rows on another disk, or of another user, stay there: the result refers to them, and opens while they exist.

        Parameters
        ----------
        name : str
            What follows ``@`` in the id.
        force : bool
            Replace a dataset of this id.
        copy : bool
            Copy rows of another disk or user instead.
        home : path, optional
            A home to write into instead of ``RLDS_HOME``.

        Raises
        ------
        NameTaken
            The id exists.
        InvalidArgument
            An episode is selected twice, or the dataset is at an address.
        NoPermission
            The dataset grows, and is on another disk or of another user: `merge` copies its episodes.

        Examples
        --------
        >>> clean = ds.select(where="success").save("clean")  # doctest: +SKIP
        """
        from rlds_cli.dataset import editing

        return self._opened(editing.save(self, self._how, editing.Target(name, force, copy, home)))

    def trim(
        self,
        ranges: Callable[[Batch], Any] | Mapping[int, Any],
        name: str,
        *,
        force: bool = False,
        copy: bool = False,
        home: StrPath | None = None,
    ) -> Dataset:
        """Make a dataset ``ID@NAME`` of ranges of steps of the selected episodes. No row is copied or decoded.

        Each range is an episode of the result. It ends *terminated* if its last step does, and is *cut* where it stops
        before the end of its episode; the observation behind it is its final observation.

        Parameters
        ----------
        ranges : callable or mapping of int
            A function of an episode, which decodes the fields that it reads; or ranges by number, as ``ds.episode(k)``
            counts, where other episodes stay whole. The ranges of an episode are a bool for each step [T], a pair
            (first, stop), a list of pairs, or None or an empty list to leave it out.
        name, force, copy, home
            As in `save`.

        Raises
        ------
        InvalidArgument
            A range leads out of its episode, or overlaps another one; or as in `save`.
        NameTaken
            As in `save`.

        Examples
        --------
        >>> moving = lambda episode: abs(episode["action"]).max(axis=1) > 0.01  # doctest: +SKIP
        >>> ds.trim(moving, "moving")  # doctest: +SKIP
        """
        function = getattr(ranges, "__name__", "function") if callable(ranges) else "ranges"
        import rlds_cli
        from rlds_cli.dataset import editing
        from rlds_cli.dataset.trimming import Ranges

        found = Ranges.of(rlds_cli.preprocess.ranges_of(self, ranges))
        target = editing.Target(name, force, copy, home)
        return self._opened(editing.trim(self, found, function, self._how, target))

    def label(
        self,
        columns: Mapping[str, Any] | None = None,
        /,
        *,
        facts: Mapping[str, Any] | None = None,
        name: str | None = None,
        force: bool = False,
        copy: bool = False,
        home: StrPath | None = None,
        **more: Any,
    ) -> Dataset:
        """Set episode columns of the selected episodes: the next version of the dataset.

        Open loaders keep the version that they have; live ones take up the next. If nothing changes, no version is
        made. A dataset of the registry is not changed in its place: that takes a ``name``.

        Parameters
        ----------
        columns : mapping
            Values by column: a flag, number or text for all selected episodes, or a sequence with one for each. None
            takes a value away. Columns may also be given as arguments: ``ds.label(quality="bad")``.
        facts : mapping
            Facts of the dataset: ``fps``, ``license``, ``description`` and ``depth_unit``.
        name : str, optional
            Make ``ID@NAME`` instead.
        force, copy, home
            As in `save`, for ``ID@NAME``.

        Raises
        ------
        InvalidArgument
            The numbers of values and episodes differ; the dataset is one of the registry, is at an address, or has a
            newer version than this one: changes apply to the newest alone. A growing dataset has another change,
            or one of the episodes left.
        InvalidEpisode
            A column has the name of one of TED's own, or values of several types.

        Examples
        --------
        >>> ds = ds.select(episodes=[3, 7]).label(quality="bad")  # doctest: +SKIP
        """
        values = {**(columns or {}), **more}
        from rlds_cli.dataset import editing

        made = editing.label(self, values, facts or {}, self._how, editing.Target(name, force, copy, home))
        return self._opened(made)

    def drop(
        self,
        *,
        name: str | None = None,
        force: bool = False,
        copy: bool = False,
        home: StrPath | None = None,
    ) -> Dataset:
        """Leave out the selected episodes: the next version of the dataset, or ``ID@NAME`` if there is a ``name``.

        Their rows stay on the disk, where earlier versions have them; `rlds compact` removes them.

        Raises
        ------
        InvalidArgument
            No episode is selected; or as in `label`.
        """
        if not self._selected:
            raise InvalidArgument(
                f"{self.id}: no episodes are selected, and all would go.", hint="ds.select(...).drop()"
            )
        from rlds_cli.dataset import editing

        return self._opened(editing.drop(self, self._how, editing.Target(name, force, copy, home)))

    def restore(self) -> Dataset:
        """Make a next version with the content of this one, which is an earlier version: undo what came after it.

        The versions between stay. No row is copied. If the newest version has this content, no version is made.

        Raises
        ------
        InvalidArgument
            This is a selection; the dataset is one of the registry, or is at an address; or it grows, and episodes of
            this version left since, or continued.

        Examples
        --------
        >>> ds = open_dataset("local/day1#v2").restore()  # doctest: +SKIP
        """
        from rlds_cli.dataset import editing

        return self._opened(editing.restore(self))

    def plan(self, decisions: Given, *, by: str = "", take: str | Sequence[str] = ()) -> DecisionPlan:
        """Return what decisions would change, and where they clash; nothing is changed. See `apply`.

        Raises
        ------
        InvalidArgument
            As in `apply`, but for clashes.
        """
        from rlds_cli.dataset.decisions import applying

        return applying.plan(self, applying.Decided.of(self, decisions, by=by, take=take))

    def apply(
        self,
        decisions: Given,
        *,
        by: str = "",
        take: str | Sequence[str] = (),
        name: str | None = None,
        force: bool = False,
        copy: bool = False,
        home: StrPath | None = None,
    ) -> Dataset:
        """Apply decisions on episodes in one transaction: the next version of the dataset, or ``ID@NAME``.

        Decisions on an earlier version are applied to the newest, by the ids of episodes. Where somebody else has
        changed the same meanwhile, nothing is done until ``take`` says what wins. If nothing changes, no version is
        made. `restore` undoes it.

        Parameters
        ----------
        decisions : path, pandas.DataFrame, sequence of mappings, or DecisionJournal
            A CSV file or a table with a row for each, records, or those of ``ds.decisions()`` that this version lacks;
            see docs/reference/decisions.md.
        by : str
            Who has made those that do not say it.
        take : str or sequence of str
            What wins where they clash: ``mine``, what was decided, or ``theirs``, what the dataset has now; and names
            of annotators, where two of them say different things.
        name : str, optional
            Make ``ID@NAME`` instead, of this version. Needed where steps are left out of an episode, and where the
            dataset is one of the registry.
        force, copy, home
            As in `save`, for ``ID@NAME``.

        Raises
        ------
        ClashingDecisions
            They clash; its ``clashes`` say where.
        InvalidArgument
            A decision cannot be understood, or names an episode that the dataset never had; a ``name`` is needed; or as
            in `label`.

        Examples
        --------
        >>> ds = ds.apply("decisions.csv")  # doctest: +SKIP
        >>> ds.apply([{"id": id, "do": "keep", "first": 12, "stop": 90}], name="clean")  # doctest: +SKIP
        """
        from rlds_cli.dataset import editing
        from rlds_cli.dataset.decisions import applying

        decided = applying.Decided.of(self, decisions, by=by, take=take)
        return self._opened(applying.apply(self, decided, editing.Target(name, force, copy, home), self._opened))

    def decisions(self, *, home: StrPath | None = None) -> DecisionJournal:
        """Return the journal of decisions on this dataset, in the home; see docs/reference/decisions.md.

        Parameters
        ----------
        home : path, optional
            A home instead of ``RLDS_HOME``.

        Examples
        --------
        >>> id = ds.episodes["id"][3].tobytes().hex()  # doctest: +SKIP
        >>> ds.decisions().add([{"id": id, "do": "drop", "by": "ann"}])  # doctest: +SKIP
        """
        from rlds_cli.dataset.decisions.journal import DecisionJournal

        return DecisionJournal(self, home=home)

    def _opened(self, path: Path) -> Dataset:
        return Dataset(open_store(path))

    # -- conversions

    def to_numpy(self, layout: Layout = "ted", fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Read the whole dataset into arrays in memory.

        Parameters
        ----------
        layout : {"ted", "d4rl", "ogbench"}
            ``ted``: transitions by field name, ``observation`` [N, ...], ``next/reward`` [N, 1], ..., with ``episode``
            [N], the number of the episode, as in ``ds[:]``. ``d4rl``: steps, as D4RL's ``env.get_dataset()``.
            ``ogbench``: transitions, as OGBench's ``load_dataset``. Transitions leave out the
            ``ds.num_steps - len(ds)`` steps whose next observation is not known, see `__getitem__`.
        fields : sequence of str, optional
            Only these fields, by their names in the dataset, in any layout. ``observation`` includes all fields below
            it; ``episode`` is allowed, too.
        """
        return layouts.to_numpy(self, layout, fields)

    def normalized_score(self, total_reward: ArrayLike) -> npt.NDArray[np.float64]:
        """Return ``(total_reward - min) / (max - min)``, with the reference scores of the registry or the archive.

        D4RL's convention (Fu et al. 2020, arXiv:2004.07219); papers report 100 times this.

        Raises
        ------
        RldsError
            No reference scores are known.
        """
        low, high = reference_scores(self.manifest)
        return (np.asarray(total_reward, np.float64) - low) / (high - low)

    def make_env(self, **kwargs: Any) -> gymnasium.Env[Any, Any]:
        """Make the environment of the data for evaluation, as the archive or the registry describes it.

        D4RL's halfcheetah, hopper and walker2d become Gymnasium's v4, with a warning that says how they differ.

        Parameters
        ----------
        **kwargs
            For ``gymnasium.make``: ``render_mode``, ``max_episode_steps``, settings of the environment.

        Raises
        ------
        NoEnvironment
            The environment is not known, no longer exists, or does not fit the data; the message says why.
        MissingPackage
            Gymnasium, or the package of the environment, is not installed.
        """
        from rlds_cli.dataset import environments

        return environments.make_env(self.manifest, tuple(self.schema.values()), **kwargs)

    if not TYPE_CHECKING:  # type checkers find wrong names by themselves

        def __getattr__(self, name: str) -> NoReturn:
            counterparts.missing(self, name, counterparts.DATASET)

    def __reduce__(self) -> tuple[object, ...]:
        return Dataset, (self.store, self._index)
