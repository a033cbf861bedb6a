"""Write a dataset that grows: step by step, by episodes, or by batches of a collector."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlds_cli import home, ids, settings
from rlds_cli.convert.create import EpisodeReader
from rlds_cli.convert.trajectories import trajectories
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument, InvalidEpisode, NameTaken, RldsError
from rlds_cli.files import safe as safe_files
from rlds_cli.files import trees
from rlds_cli.growing import appender
from rlds_cli.growing.appender import Appender
from rlds_cli.growing.retention import Keep
from rlds_cli.growing.store import is_growing
from rlds_cli.home import Home
from rlds_cli.home.locks import exclusive
from rlds_cli.progress import silent
from rlds_cli.settings import StrPath
from rlds_cli.ted import FLAGS, REWARD, Array, EpisodeData, Field, Scalar, lay_out

_INTERVAL = 0.05  # seconds that an ended episode waits for others, to be committed with them
_MOST_BYTES = 16 << 20  # of ended episodes that wait
_FIRST_STEPS = 64  # rows of the buffers of a new episode


def writer(
    ref: str,
    *,
    like: Dataset | None = None,
    fields: Iterable[Field] | None = None,
    keep: Keep | None = None,
    envs: int | None = None,
    shared: bool = False,
    durable: bool = True,
    cache_dir: StrPath | None = None,
) -> Writer:
    """Open a dataset that grows for writing; it is made if it is not there.

    Parameters
    ----------
    ref : str
        Its id, such as ``local/run7``. A name that exists is continued.
    like : Dataset, optional
        The dataset whose fields it gets.
    fields : iterable of Field, optional
        Its fields. Without these and ``like``, the first episode defines them.
    keep : Fifo, Reservoir or Top, optional
        What stays; everything without it. It belongs to the dataset: who continues one need not repeat it.
    envs : int, optional
        Steps are those of so many environments side by side: each value is [envs, ...].
    shared : bool
        Let other writers with ``shared=True`` append at the same time.
    durable : bool
        Wait at each commit for the disk, so that a commit outlasts a power failure.
    cache_dir : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    NameTaken
        The id is of a dataset that does not grow, or another writer is at work.
    InvalidArgument
        ``keep`` or fields are not those of the dataset that is there.

    Examples
    --------
    >>> import numpy as np, tempfile, rlds_cli
    >>> with rlds_cli.writer("local/run", cache_dir=tempfile.mkdtemp()) as w:
    ...     for t in range(3):
    ...         w.add(np.ones(2), np.zeros(1), reward=1.0, terminated=t == 2, next_observation=np.ones(2))
    >>> w.dataset().num_transitions
    3
    """
    if like is not None and fields is not None:
        raise InvalidArgument("like= and fields= both say which fields there are; give one of them.")
    if envs is not None and (isinstance(envs, bool) or not isinstance(envs, int) or envs < 1):
        raise InvalidArgument(f"envs={envs!r}: a number of environments is needed.")
    wanted = tuple(map(_decoded, like.schema.values())) if like is not None else tuple(fields or ())
    about = {"spaces": like.manifest.spaces, "env": like.manifest.env} if like is not None else {}
    return Writer(ref, wanted, about, keep, envs or 0, shared=shared, durable=durable, cache_dir=cache_dir)


def _decoded(f: Field) -> Field:
    """Return a field as a dataset that grows holds it: frames as arrays."""
    return Field(f.name, f.dtype, f.shape, f.placement) if f.kind == "frames" else f


class Writer:
    """Appends episodes to a dataset; a context manager. One thread at a time may use it.

    Ended episodes are committed within 100 ms, several together. An error of a commit is raised by the next call.
    """

    def __init__(
        self,
        ref: str,
        fields: tuple[Field, ...],
        about: Mapping[str, Any],
        keep: Keep | None,
        envs: int,
        *,
        shared: bool,
        durable: bool,
        cache_dir: StrPath | None,
    ) -> None:
        self._id = ids.parse(ref)
        where = settings.read(cache_dir)
        self._home, self._cache_dir = Home(where.home), cache_dir
        self._fields, self._about, self._keep = fields, about, keep
        self._shared, self._durable, self._envs = shared, durable, envs
        self._appender: Appender | None = None
        self._reader = EpisodeReader(fields, keep_frames=False)
        self._open = [_OpenEpisode() for _ in range(envs or 1)]
        self._cuts: dict[int, int] = {}  # environment -> number of its open episode, as it was committed
        self._waiting: list[tuple[EpisodeData, bool, int | None]] = []  # episode, protected, environment if it is open
        self._replaced: list[int] = []  # numbers of open episodes that go on
        self._waiting_bytes, self._since = 0, 0.0
        self._failed: BaseException | None = None
        self._ended = False
        self._state = threading.Condition()
        self._committing = threading.Lock()
        self._count = 0  # episodes that were read
        found = home.find(self._id, where)
        if found is not None or fields:
            self._start(found)
        self._thread = threading.Thread(target=self._commit_on_time, daemon=True, name=f"writer of {ref}")
        self._thread.start()

    # -- steps and episodes

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any = None,
        terminated: Any = False,
        truncated: Any = False,
        *,
        next_observation: Any = None,
        info: Mapping[str, Any] | None = None,
        episode: Mapping[str, Scalar] | None = None,
        protected: bool = False,
        **fields: Any,
    ) -> None:
        """Add a step: what was observed, what was done, and what came of it.

        Values are copied. With ``envs=n`` each is [n, ...], also in nested dicts.

        Parameters
        ----------
        observation, action : array, or nested dict of arrays
        reward : float, optional
        terminated, truncated : bool
            The step ends the episode: the task is over, or time is up.
        next_observation : like observation, optional
            What was observed after the step. It is needed of the last step of an episode, else its final observation
            is unknown. With environments that reset by themselves, it is the one before the reset.
        info : dict, optional
            Fields ``info/...``.
        episode : dict, optional
            Values of the whole episode, such as ``{"success": True}``; of the last step, with ``envs``.
        protected : bool
            The policy of the dataset never lets this episode leave.
        fields
            Further fields of the step.

        Raises
        ------
        InvalidEpisode
            A value does not fit those before it. The open episode stays as it was before the step.
        """
        self._raise()
        step: dict[str, Any] = {"observation": observation, "action": action, **fields}
        if reward is not None:
            step[REWARD] = reward
        if info:
            step["info"] = info
        ended = (np.asarray(terminated), np.asarray(truncated))
        if not self._envs:
            self._add_one(0, step, bool(ended[0]), bool(ended[1]), next_observation, episode, protected)
            return
        shapes = {e.shape for e in ended} - {(self._envs,), ()}
        if shapes:
            raise InvalidEpisode(
                f"flags of shape {sorted(shapes)[0]}; [{self._envs}] is needed, one of each environment."
            )
        for k in range(self._envs):
            last = [bool(e if e.ndim == 0 else e[k]) for e in ended]
            after = None if next_observation is None else _of(next_observation, k, self._envs)
            self._add_one(k, _of(step, k, self._envs), last[0], last[1], after, episode, protected)

    def _add_one(
        self,
        env: int,
        step: dict[str, Any],
        terminated: bool,
        truncated: bool,
        after: Any,
        about: Mapping[str, Scalar] | None,
        protected: bool,
    ) -> None:
        self._open[env].add(step, after, about or {}, protected)
        if terminated or truncated:
            self._end(env, terminated, truncated)

    def end(self, env: int = 0, *, truncated: bool = True, episode: Mapping[str, Scalar] | None = None) -> None:
        """End the open episode of an environment, which took no further step: truncated, or cut."""
        self._raise()
        if self._open[env].steps:
            self._open[env].about |= dict(episode or {})
            self._end(env, False, truncated)

    def _end(self, env: int, terminated: bool, truncated: bool) -> None:
        done, self._open[env] = self._open[env], _OpenEpisode()
        with self._state:
            cut = self._cuts.pop(env, None)
            self._queue(done.item(terminated, truncated), done.protected, None)
            if cut is not None:
                self._replaced.append(cut)
        self._relieve()

    def add_episodes(self, items: Iterable[Any], *, protected: bool = False) -> int:
        """Add whole episodes, in any form that `rlds_cli.create` takes; return how many.

        These are nested dicts, episodes of other datasets, and batches of a collector as TensorDicts: trajectories of
        which the last step is missing are joined with those of the next batch.
        """
        self._raise()
        before = self._count
        for e in self._reader.episodes(trajectories(items)):
            with self._state:
                self._put(e, protected, None)
            self._relieve()
        return self._count - before

    def _queue(self, item: Mapping[str, Any], protected: bool, env: int | None) -> None:
        for e in self._reader.episodes(trajectories([item])):
            self._put(e, protected, env)

    def _put(self, e: EpisodeData, protected: bool, env: int | None) -> None:
        e.row = self._count
        self._count += 1
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting.append((e, protected, env))
        self._waiting_bytes += sum(getattr(c, "nbytes", 0) for c in e.columns.values())
        self._state.notify_all()

    # -- commits

    def commit(self) -> int:
        """Commit all episodes, the open ones too, and return the number of the new generation.

        An open episode is ``cut`` for readers, until it goes on: the next commit then replaces it.
        """
        self._raise()
        with self._state:
            for env, episode in enumerate(self._open):
                if episode.steps and not episode.committed:
                    if env in self._cuts:
                        self._replaced.append(self._cuts.pop(env))
                    self._queue(episode.item(False, False), episode.protected, env)
                    episode.committed = True
        self._flush()
        self._raise()
        return 0 if self._appender is None else self._appender.generation.number

    def _relieve(self) -> None:
        """Commit here if too much waits."""
        if self._waiting_bytes > _MOST_BYTES:
            self._flush()
            self._raise()

    def _flush(self) -> None:
        with self._committing:
            with self._state:
                waiting, self._waiting = self._waiting, []
                leaving, self._replaced = self._replaced, []
                self._waiting_bytes = 0
            if not waiting and not leaving:
                return
            try:
                if self._appender is None:
                    self._start(None)
                assert self._appender is not None
                chunk = lay_out(self._reader.schema, [e for e, _, _ in waiting])
                _, numbers = self._appender.commit(chunk, protected=[p for _, p, _ in waiting], leaving=leaving)
            except BaseException as e:
                with self._state:  # nothing was committed: these wait again
                    self._waiting, self._replaced = [*waiting, *self._waiting], [*leaving, *self._replaced]
                    self._failed = e
                return
            with self._state:
                for number, (_, _, env) in zip(numbers, waiting, strict=True):
                    if env is not None:
                        self._cuts[env] = number

    def _commit_on_time(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._ended or (self._waiting and self._failed is None))
                if self._ended:
                    return
                self._state.wait_for(lambda: self._ended, max(0.0, self._since + _INTERVAL - time.monotonic()))
            self._flush()

    def _raise(self) -> None:
        if self._ended:
            raise RldsError(f"The writer of {self._id} is closed.")
        with self._state:
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _start(self, found: Path | None) -> None:
        """Open the dataset, or make it."""
        if found is None:
            with exclusive(self._home, self._id, silent):
                found = self._home.dataset(self._id)
                if not found.exists():
                    self._make(found)
        if not is_growing(found):
            raise NameTaken(
                f"{self._id} is here, and does not grow.",
                hint=f"another name; rlds_cli.writer({str(self._id)!r}, ...).add_episodes() copies it into a new one",
            )
        opened = Appender(found, shared=self._shared, durable=self._durable)
        try:
            self._check(opened, found)
        except BaseException:
            opened.close()
            raise
        self._appender, self._reader.schema = opened, opened.schema

    def _make(self, target: Path) -> None:
        if self._keep is not None and not isinstance(self._keep, Keep):
            raise InvalidArgument(f"keep={self._keep!r}: Fifo, Reservoir or Top is needed.")
        work = self._home.partial(self._id, f"writer-{secrets.token_hex(4)}")
        safe_files.work_directory(work, self._home.root)
        try:
            appender.make(work, str(self._id), self._reader.schema, keep=self._keep, about=self._about)
            safe_files.directory(target.parent, self._home.root)
            work.rename(target)
        finally:
            trees.discard(work)

    def _check(self, opened: Appender, path: Path) -> None:
        if self._keep is not None and opened.keep != self._keep:
            raise InvalidArgument(
                f"{self._id} keeps {opened.keep or 'everything'}, not {self._keep}.",
                hint="leave keep out to go on with it; what a dataset keeps is decided when it is made",
            )
        wanted = {f.name: f for f in self._reader.schema}
        there = {f.name: f for f in opened.schema}
        if wanted and wanted != there:
            name = next(n for n in sorted({*wanted, *there}) if wanted.get(n) != there.get(n))
            raise InvalidArgument(
                f"{self._id} is here with other fields: {name} is {_described(there.get(name))},"
                f" not {_described(wanted.get(name))}.",
                hint="another name, or the fields that it has",
            )

    # -- the end

    def dataset(self) -> Dataset:
        """Open the dataset at its newest generation."""
        return open_dataset(str(self._id), cache_dir=self._cache_dir)

    def close(self) -> None:
        """Commit everything, open episodes as cut ones, and let others write."""
        if self._ended:
            return
        try:
            self.commit()
        finally:
            with self._state:
                self._ended = True
                self._state.notify_all()
            self._thread.join()
            if self._appender is not None:
                self._appender.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _described(f: Field | None) -> str:
    if f is None:
        return "not there"
    return f"{f.dtype} {list(f.shape)}, placed {f.placement}" if f.kind == "array" else f.kind


class _OpenEpisode:
    """The steps of an episode so far, in buffers that grow."""

    def __init__(self) -> None:
        self.steps = 0
        self.about: dict[str, Scalar] = {}
        self.protected = self.committed = False
        self._buffers: dict[str, Array | list[Any]] = {}
        self._after: dict[str, Any] = {}

    def add(self, step: Mapping[str, Any], after: Any, about: Mapping[str, Scalar], protected: bool) -> None:
        leaves = dict(_leaves(step, ""))
        if self.steps and leaves.keys() != self._buffers.keys():
            wrong = sorted(leaves.keys() ^ self._buffers.keys())
            raise InvalidEpisode(f"step {self.steps}: {', '.join(wrong)} is not in every step of the episode.")
        prepared = {name: self._prepared(name, value) for name, value in leaves.items()}
        for name, value in prepared.items():
            self._write(name, value)
        self.steps += 1
        self._after = {} if after is None else dict(_leaves({"observation": after}, ""))
        if after is not None:
            self._after = {name: np.array(v) if not isinstance(v, str) else v for name, v in self._after.items()}
        self.about |= dict(about)
        self.protected = self.protected or protected
        self.committed = False

    def _prepared(self, name: str, value: Any) -> Any:
        buffer = self._buffers.get(name)
        if isinstance(value, str) or value is None or isinstance(buffer, list):
            if self.steps and not isinstance(buffer, list):
                raise InvalidEpisode(f"step {self.steps}: {name} is text, and was an array before.")
            return value
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise InvalidEpisode(
                f"step {self.steps}: {name} has dtype {array.dtype}; numbers, flags or text are needed."
            )
        if buffer is not None and array.shape != buffer.shape[1:]:
            shapes = f"{list(array.shape)}, {list(buffer.shape[1:])} before"
            raise InvalidEpisode(f"step {self.steps}: {name} has shape {shapes}.")
        return array

    def _write(self, name: str, value: Any) -> None:
        buffer = self._buffers.get(name)
        if buffer is None:
            text = isinstance(value, str) or value is None
            buffer = [] if text else np.empty((_FIRST_STEPS, *value.shape), value.dtype)
            self._buffers[name] = buffer
        if isinstance(buffer, list):
            buffer.append(value)
            return
        if self.steps == len(buffer):
            buffer = self._buffers[name] = np.concatenate([buffer, np.empty_like(buffer)])
        if value.dtype != buffer.dtype:
            joint = np.result_type(value.dtype, buffer.dtype)
            if joint != buffer.dtype:  # the schema says later whether it fits
                buffer = self._buffers[name] = buffer.astype(joint)
        buffer[self.steps] = value

    def item(self, terminated: bool, truncated: bool) -> dict[str, Any]:
        """Return the episode so far, in the form that `rlds_cli.create` takes."""
        found: dict[str, Any] = {}
        for name, buffer in self._buffers.items():
            values: Any = list(buffer[: self.steps]) if isinstance(buffer, list) else buffer[: self.steps]
            if name in self._after:
                last = self._after[name]
                values = [*values, last] if isinstance(values, list) else _extended(values, last, name)
            found[name] = values
        flags = {FLAGS[0]: terminated, FLAGS[1]: truncated}
        for name, ends in flags.items():
            column = np.zeros(self.steps, bool)
            column[-1] = ends
            found[name] = column
        return found | ({"episode": dict(self.about)} if self.about else {})


def _extended(values: Array, last: Any, name: str) -> Array:
    last = np.asarray(last)
    if last.shape != values.shape[1:]:
        raise InvalidEpisode(f"next_observation: {name} has shape {list(last.shape)}, {list(values.shape[1:])} before.")
    return np.concatenate([values, last[None].astype(values.dtype) if last.dtype != values.dtype else last[None]])


def _leaves(values: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}/")
        elif isinstance(value, tuple) and value and not np.isscalar(value[0]):
            yield from _leaves(dict(enumerate(value)), f"{name}/")
        else:
            yield name, value


def _of(values: Any, k: int, count: int) -> Any:
    """Return the values of one environment."""
    if isinstance(values, Mapping):
        return {key: _of(value, k, count) for key, value in values.items()}
    if isinstance(values, tuple) and values and hasattr(values[0], "__len__"):
        return tuple(_of(value, k, count) for value in values)
    if not hasattr(values, "__len__") or len(values) != count:
        size = len(values) if hasattr(values, "__len__") else "one value"
        raise InvalidEpisode(f"{size} for {count} environments: each value is [{count}, ...].")
    return values[k]
