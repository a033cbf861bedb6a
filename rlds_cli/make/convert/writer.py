"""Write a growing dataset: step by step, by episodes, or by batches of a collector."""

from __future__ import annotations

import atexit
import os
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from rlds_cli import homes
from rlds_cli.base import ids, settings
from rlds_cli.base.files import disk, trees
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.progress import silent
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import InvalidArgument, InvalidEpisode, RldsError
from rlds_cli.homes import Home, exclusive
from rlds_cli.make.convert.create import CODECS, EpisodeReader
from rlds_cli.make.convert.open_episode import Committed, OpenEpisode, of_each
from rlds_cli.make.convert.trajectories import Trajectory, TrajectoryStream, completed, trajectories
from rlds_cli.store import Appender, Keep, make_growing
from rlds_cli.store.growing.appender import Cleared
from rlds_cli.ted import REWARD, EpisodeData, Field, Scalar, lay_out

_INTERVAL = 0.03  # seconds that an ended episode waits for others, to be committed with them
_MOST_BYTES = 8 << 20  # of ended episodes that wait


def writer(
    ref: str,
    *,
    like: Dataset | None = None,
    fields: Iterable[Field] | None = None,
    keep: Keep | None = None,
    envs: int | None = None,
    frames: Literal["encoded", "raw"] = "encoded",
    shared: bool = False,
    durable: bool = True,
    home: StrPath | None = None,
) -> Writer:
    """Open a growing dataset for writing; it is made if it is not there.

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
    frames : {"encoded", "raw"}
        Keep images given as bytes, and images and videos of other datasets, as they are; or store arrays, also where
        ``like`` has encoded frames.
    shared : bool
        Let other writers with ``shared=True`` append at the same time.
    durable : bool
        Wait at each commit for the disk, so that a commit outlasts a power failure.
    home : path, optional
        A home instead of ``RLDS_HOME``.

    Raises
    ------
    NameTaken
        The id is of a dataset that does not grow, or another writer is at work.
    InvalidArgument
        ``keep`` or fields are not those of the existing dataset.

    Examples
    --------
    >>> import numpy as np, tempfile, rlds_cli
    >>> with rlds_cli.writer("local/run", home=tempfile.mkdtemp()) as w:
    ...     for t in range(3):
    ...         w.add(np.ones(2), np.zeros(1), reward=1.0, terminated=t == 2, next_observation=np.ones(2))
    >>> w.dataset().num_transitions
    3
    """
    if like is not None and fields is not None:
        raise InvalidArgument("like= and fields= both say which fields there are; give one of them.")
    if keep is not None and not isinstance(keep, Keep):
        raise InvalidArgument(f"keep={keep!r}: Fifo, Reservoir or Top is needed.")
    if envs is not None and (isinstance(envs, bool) or not isinstance(envs, int) or envs < 1):
        raise InvalidArgument(f"envs={envs!r}: a number of environments is needed.")
    if frames not in ("encoded", "raw"):
        raise InvalidArgument(f'frames={frames!r}: "encoded" or "raw".')
    codecs = CODECS if frames == "encoded" else ()
    wanted = fields_like(like, codecs) if like is not None else tuple(fields or ())
    about = {"spaces": like.manifest.spaces, "env": like.manifest.env} if like is not None else {}
    return Writer(ref, wanted, about, keep, envs or 0, codecs=codecs, shared=shared, durable=durable, home=home)


def fields_like(like: Dataset, codecs: Collection[str]) -> tuple[Field, ...]:
    """Return the fields of a dataset; frames of other ``codecs`` than these as arrays."""
    kept = ("array", "text")
    return tuple(
        f if f.kind in kept or f.codec in codecs else Field(f.name, f.dtype, f.shape, f.placement)
        for f in like.schema.values()
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An episode to be committed; ``of`` continues, and is committed as it is now."""

    episode: EpisodeData
    protected: bool
    of: Committed | None = None

    @property
    def nbytes(self) -> int:
        return sum(getattr(c, "nbytes", 8 * len(c)) for c in self.episode.columns.values())


class Writer:
    """Appends episodes to a dataset; a context manager. One thread at a time may use it, in the process that opened it.

    Ended episodes are committed within 100 ms, several together, by a thread of the writer's own. An error of a commit
    is raised by the next call, which then does nothing else; the episodes wait, and the next commit tries again.
    ``commit`` and ``close`` try again at once. A program that ends without ``close`` closes its writers.
    """

    def __init__(
        self,
        ref: str,
        fields: tuple[Field, ...],
        about: Mapping[str, Any],
        keep: Keep | None,
        envs: int,
        *,
        codecs: Sequence[str] = CODECS,
        shared: bool,
        durable: bool,
        home: StrPath | None,
    ) -> None:
        self._id = ids.parse(ref)
        where = settings.read(home)
        self._home, self._given_home = Home(where.home), home
        self._about, self._keep = about, keep
        self._shared, self._durable, self._envs = shared, durable, envs
        self._process = os.getpid()
        self._appender: Appender | None = None
        self._reader = EpisodeReader(fields, codecs=codecs)
        self._open = [OpenEpisode() for _ in range(envs or 1)]
        self._stream = TrajectoryStream()
        self._collected: dict[int, tuple[Trajectory, Committed]] = {}  # unfinished ones that readers see
        self._waiting: list[_Waiting] = []
        self._cleared: Cleared | None = None  # which earlier episodes leave with the next commit
        self._replaced: list[int] = []  # numbers of episodes that were committed before they ended
        self._waiting_bytes, self._since = 0, 0.0
        self._failed: BaseException | None = None
        self._state = threading.Condition()
        self._asked = self._answered = 0  # calls that wait until everything is committed
        self._ended = self._done = False
        self._count = 0  # episodes that were read
        found = homes.path_of(self._id, where)
        if found is not None or fields:
            self._start(found)
        self._thread = threading.Thread(target=self._commit_on_time, daemon=True, name=f"writer of {ref}")
        self._thread.start()
        atexit.register(self._close_at_exit)

    # -- steps and episodes

    @property
    def fields(self) -> Mapping[str, Field]:
        """Fields of the dataset by name; empty as long as they are not known."""
        return {f.name: f for f in self._reader.schema}

    def add(
        self,
        observation: Any = None,
        action: Any = None,
        reward: Any = None,
        terminated: Any = False,
        truncated: Any = False,
        *,
        next_observation: Any = None,
        info: Mapping[str, Any] | None = None,
        episode: Mapping[str, Any] | None = None,
        protected: Any = False,
        mask: Any = None,
        **fields: Any,
    ) -> None:
        """Add a step: the observation, the action, and the result.

        Values are copied. The first episode defines the fields, if nothing else does: numbers of Python then become
        int64 and float64, and whole numbers among others become floats. Where fields are known, numbers of Python are
        rounded to their dtype, and arrays must fit without loss, as for `create`.

        With ``envs=n`` each value is [n, ...], also in nested dicts and tuples.

        Parameters
        ----------
        observation, action : array, or nested dict or tuple of arrays
            The bytes of a PNG or JPEG image are stored as they are; a field of arrays takes them decoded. Agents in
            groups are fields instead, named as for `create`:
            ``add(agents={"observation": o, "action": a}, next={"agents": {"reward": r, "observation": after}})``.
        reward : float, optional
        terminated, truncated : bool
            The step ends the episode: the task is over, or time is up.
        next_observation : like observation, optional
            What was observed after the step. It is needed of the last step of an episode, else its final observation
            is unknown; where it is given, the next step must begin with it. With environments that reset by themselves,
            it is the one before the reset.
        info : dict, optional
            Fields ``info/...``.
        episode : dict, optional
            Values of the whole episode, such as ``{"success": True}``; with ``envs``, single values or one for each.
        protected : bool
            The policy of the dataset never lets this episode leave; with ``envs``, one for all or one for each.
        mask : bool array [envs], optional
            Environments that took a step. Gymnasium's, which reset in the step after the end (``NEXT_STEP``), take none
            then: ``mask=~(terminated | truncated)`` of the step before.
        fields
            Further fields of the step.

        Raises
        ------
        InvalidEpisode
            A value does not fit those before it. Nothing was added, of no environment; open episodes are as before.
        """
        self._raise()
        given = {"observation": observation, "action": action, REWARD: reward}
        step: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | fields
        if info:
            step["info"] = info
        if not self._envs:
            if mask is not None:
                raise InvalidArgument("mask= is for environments side by side: writer(..., envs=n).")
            goes_on = not (terminated or truncated or episode or protected)
            if goes_on and self._open[0].follow(step, next_observation):
                return
            each = [(0, step, next_observation, episode, bool(protected), bool(terminated), bool(truncated))]
        else:
            each = list(self._of_each(step, next_observation, episode, protected, terminated, truncated, mask))
        self._add(each)

    def _of_each(self, step: Any, after: Any, episode: Any, *flags: Any) -> Iterator[tuple[Any, ...]]:
        n = self._envs
        *flags, mask = (None if f is None else np.asarray(f) for f in flags)  # type: ignore[assignment]
        for f in [*flags, *([] if mask is None else [mask])]:
            if f.shape not in ((), (n,), (n, 1)):
                raise InvalidEpisode(f"flags of shape {list(f.shape)}; [{n}] is needed, one of each environment.")
        columns = [np.broadcast_to(f if f.ndim == 0 else f.reshape(-1), n).astype(bool).tolist() for f in flags]
        about: list[dict[str, Any]] = [{} for _ in range(n)]
        for name, value in (episode or {}).items():
            each = list(value) if hasattr(value, "__len__") and not isinstance(value, str) else [value] * n
            for k, one in enumerate(of_each(each, n, f"episode/{name}")):
                about[k][name] = one
        steps, later = of_each(step, n, ""), of_each(after, n, "next_observation")
        for k, values in enumerate(zip(steps, later, about, *columns, strict=True)):
            if mask is None or mask.reshape(-1)[k if mask.ndim else 0]:
                yield k, *values

    def _add(self, given: Sequence[tuple[Any, ...]]) -> None:
        """Add a step of some environments, all or none."""
        schema, before = self.fields, self._reader.schema
        prepared = [(k, self._open[k].prepared(step, after, schema), *rest) for k, step, after, *rest in given]
        taken: list[OpenEpisode] = []
        try:
            for k, values, about, protected, _, _ in prepared:
                self._open[k].take(*values, about or {}, protected, schema)
                taken.append(self._open[k])
            done = [(k, self._read(self._open[k], t, u)) for k, _, _, _, t, u in prepared if t or u]
        except BaseException:
            for open in taken:
                open.undo()
            if self._appender is None:
                self._reader.schema = before
            raise
        for k, e in done:
            self._end(k, e)
        self._relieve()

    def begin(self, env: int = 0, *, seed: int | None = None, options: str | None = None) -> None:
        """Begin another episode of an environment, which was reset; an open one is cut.

        Parameters
        ----------
        env : int
            Number of the environment.
        seed : int, optional
            For the episode table, 0 to 2**64 - 1.
        options : str, optional
            For the episode table: the options of the reset, as JSON.

        Raises
        ------
        InvalidArgument
            There is no such environment, or the seed is none.
        """
        if seed is not None and (isinstance(seed, bool) or not 0 <= int(seed) < 1 << 64):
            raise InvalidArgument(f"seed={seed!r}: a whole number from 0 to 2**64 - 1 is needed.")
        self.end(env, truncated=False)
        self._open[env].seed, self._open[env].options = None if seed is None else int(seed), options

    def end(self, env: int = 0, *, truncated: bool = True, episode: Mapping[str, Scalar] | None = None) -> None:
        """End the open episode of an environment, which took no further step: truncated, or cut."""
        self._raise()
        if not 0 <= env < len(self._open):
            raise InvalidArgument(f"env={env}: there are {len(self._open)} environments.")
        open = self._open[env]
        if open.steps:
            before, open.about = open.about, open.about | dict(episode or {})
            try:
                done = self._read(open, False, truncated)
            except BaseException:
                open.about = before
                raise
            self._end(env, done)
            self._relieve()

    def _read(self, open: OpenEpisode, terminated: bool, truncated: bool, *, copies: bool = False) -> EpisodeData:
        self._reader.copies = copies
        try:
            (e,) = self._reader.episodes(trajectories([open.item(terminated, truncated)]))
        finally:
            self._reader.copies = True
        e.seed, e.options = open.seed, open.options
        return e

    def _end(self, env: int, e: EpisodeData) -> None:
        done, self._open[env] = self._open[env], OpenEpisode()
        with self._state:
            self._put(e, done.protected, instead=done)

    def add_episodes(self, items: Iterable[Any], *, protected: bool = False) -> int:
        """Add whole episodes, in any form that `rlds_cli.create` takes; return how many.

        These are nested dicts, episodes of other datasets, and batches of a collector as TensorDicts; a single one
        will do. A trajectory that a batch of a collector leaves unfinished waits for the next batch, also in another
        call; until then `commit` shows it as cut.

        Raises
        ------
        InvalidEpisode
            An episode does not fit. Those before it were added.
        """
        self._raise()
        before = self._count
        for t in self._stream.read([items] if hasattr(items, "items") else items):
            self._put_trajectory(t, protected)
        return self._count - before

    def _put_trajectory(self, t: Trajectory, protected: bool) -> None:
        for e in self._reader.episodes(iter([t])):
            with self._state:
                _, shown = self._collected.pop(t.id, (None, None)) if t.id is not None else (None, None)
                self._put(e, protected, instead=shown)
            self._relieve()

    def _put(
        self, e: EpisodeData, protected: bool, *, of: Committed | None = None, instead: Committed | None = None
    ) -> None:
        """Let an episode wait, ``of`` one that continues, or ``instead`` of what was committed of it."""
        earlier = of or instead
        if earlier is not None:
            superseded = [w for w in self._waiting if w.of is earlier]
            self._waiting = [w for w in self._waiting if w.of is not earlier]
            self._waiting_bytes -= sum(w.nbytes for w in superseded)
            if earlier.number is not None:
                self._replaced.append(earlier.number)
                earlier.number = None
            earlier.changed, earlier.ended = False, instead is not None
            earlier.shown = earlier.shown or of is not None
            e.id = earlier.id if earlier.shown else e.id
        e.row, self._count = self._count, self._count + (of is None)
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(_Waiting(e, protected, of))
        self._waiting_bytes += self._waiting[-1].nbytes
        self._state.notify_all()

    # -- commits

    def commit(self) -> int:
        """Commit all episodes, the open ones too, and return the number of the new version.

        An open episode is ``cut`` for readers, until it continues: the next commit then replaces it, as a whole.
        Retention counts it when it has ended.
        """
        self._check_usable()
        try:
            with self._state:
                self._failed = None
                self._put_open()
        finally:
            self._flush()
        return 0 if self._appender is None else self._appender.newest.number

    def clear(self, *, protected: bool = False) -> int:
        """Let all episodes leave, those of other writers as well, and return the number of the new version.

        The dataset keeps its id, its fields and what it keeps. Episodes that were not committed yet are dropped. An
        open episode continues, and is the first one after. Who reads an older version reads on; the rows are freed
        when nobody does.

        Parameters
        ----------
        protected : bool
            Protected episodes leave, too.

        Raises
        ------
        NoSpace
            The disk is full. The dataset is as it was before.
        """
        self._check_usable()
        with self._state:
            self._failed, self._cleared = None, "all" if protected else "unprotected"
            kept = [w for w in self._waiting if w.protected and w.of is None and not protected]
            self._waiting, self._waiting_bytes = kept, sum(w.nbytes for w in kept)
            for open in self._open:  # what was committed of them leaves, and comes again as a whole
                open.changed = bool(open.steps)
            self._collected.clear()
        self._flush()
        return 0 if self._appender is None else self._appender.newest.number

    def _put_open(self, *, final: bool = False) -> None:
        """Let open episodes wait as they are, for ``final`` as ended ones."""
        for open in self._open:
            if open.steps and (open.changed or (final and open.number is None)):
                e = self._read(open, False, False, copies=True)
                self._put(e, open.protected, **{"instead" if final else "of": open})
        for id, t in self._stream.waiting.items():
            known, shown = self._collected.get(id, (None, Committed()))
            if known is not t:
                self._collected[id] = t, shown
                for e in self._reader.episodes(iter([completed(t)])):
                    self._put(e, False, **{"instead" if final else "of": shown})

    def _relieve(self) -> None:
        """Commit here if too much waits."""
        if self._waiting_bytes > _MOST_BYTES:
            self._flush()

    def _flush(self) -> None:
        """Wait until all that waits is committed."""
        with self._state:
            self._asked += 1
            mine = self._asked
            self._state.notify_all()
            self._state.wait_for(lambda: self._answered >= mine or self._done)
        self._raise()

    def _commit_on_time(self) -> None:
        """Commit what waits, in a thread of its own: an interrupt (Ctrl-C) never comes in the middle of a commit."""
        while True:
            with self._state:
                self._state.wait_for(self._is_wanted)
                if not self._ended and self._asked == self._answered:
                    at = self._since + _INTERVAL - time.monotonic()
                    self._state.wait_for(lambda: self._ended or self._asked > self._answered, max(0.0, at))
                if self._ended and self._asked == self._answered:
                    self._done = True
                    self._state.notify_all()
                    return
                asked = self._asked
                waiting, self._waiting = self._waiting, []
                leaving, self._replaced = self._replaced, []
                cleared, self._cleared = self._cleared, None
                self._waiting_bytes = 0
            failed = self._commit(waiting, leaving, cleared) if waiting or leaving or cleared else None
            with self._state:
                if failed is not None:  # these wait again
                    self._waiting, self._replaced = [*waiting, *self._waiting], [*leaving, *self._replaced]
                    self._waiting_bytes = sum(w.nbytes for w in self._waiting)
                    self._failed = failed
                self._answered = asked
                self._state.notify_all()

    def _is_wanted(self) -> bool:
        return self._ended or self._asked > self._answered or bool(self._waiting and self._failed is None)

    def _commit(
        self, waiting: Sequence[_Waiting], leaving: Sequence[int], cleared: Cleared | None
    ) -> BaseException | None:
        """Commit episodes, or return the error with which nothing was committed."""
        if self._appender is None and not waiting:
            return None  # nothing was ever committed
        try:
            if self._appender is None:
                self._start(None)
            assert self._appender is not None
            chunk = lay_out(self._reader.schema, [w.episode for w in waiting])
            if any(w.episode.id for w in waiting):
                own = b"".join(w.episode.id or bytes(16) for w in waiting)  # zeros: none
                chunk.episodes.id = np.frombuffer(own, np.uint8).reshape(-1, 16)
            protected, opened = [w.protected for w in waiting], [w.of is not None for w in waiting]
            _, numbers = self._appender.commit(
                chunk,
                protected=protected,
                opened=opened,
                leaving=leaving,
                cleared=cleared,
                locate=self._reader.videos.locate,
            )
        except BaseException as e:
            return e
        with self._state:
            for number, w in zip(numbers, waiting, strict=True):
                if w.of is not None and w.of.ended:
                    self._replaced.append(number)
                elif w.of is not None:
                    w.of.number = number
            unsure, self._appender.unsure = self._appender.unsure, None
            if unsure is not None:
                self._failed = RldsError(
                    f"Version {self._appender.newest.number:,} of {self._id} is committed, but the disk does "
                    f"not confirm it: {unsure.strerror}.",
                    hint="rlds verify ID",
                )
        return None

    def _check_usable(self) -> None:
        if self._ended:
            raise RldsError(f"The writer of {self._id} is closed.")
        if os.getpid() != self._process:
            raise RldsError(
                f"The writer of {self._id} was opened by another process.",
                hint="each process opens its own: rlds_cli.writer(..., shared=True)",
            )

    def _raise(self) -> None:
        self._check_usable()
        if self._failed is not None:
            with self._state:
                failed, self._failed = self._failed, None
                self._since = time.monotonic()
                self._state.notify_all()
            if failed is not None:
                raise failed

    def _start(self, found: Path | None) -> None:
        """Open the dataset, or make it."""
        if found is None:
            found = self._home.dataset(self._id)
            with exclusive(self._home, self._id, silent):
                if not found.exists():
                    self._make(found)
        opened = Appender(found, shared=self._shared, durable=self._durable)
        try:
            self._check(opened, found)
        except BaseException:
            opened.close()
            raise
        self._appender, self._reader.schema = opened, opened.schema

    def _make(self, target: Path) -> None:
        work = self._home.partial(self._id, f"writer-{secrets.token_hex(4)}")
        safe_files.work_directory(work, self._home.root)  # for this user alone, unlike the dataset in it
        try:
            (work / "dataset").mkdir(safe_files.DIRECTORY)
            make_growing(work / "dataset", str(self._id), self._reader.schema, keep=self._keep, about=self._about)
            safe_files.directory(target.parent, self._home.root)
            (work / "dataset").rename(target)
            disk.sync_directory(target.parent)
        except OSError as e:
            raise disk.disk_error(e, target, kept="Nothing was written.") from e
        finally:
            trees.discard(work)

    def _check(self, opened: Appender, path: Path) -> None:
        if self._keep is not None and opened.keep != self._keep:
            raise InvalidArgument(
                f"{self._id} keeps {opened.keep or 'everything'}, not {self._keep}.",
                hint="leave keep out to continue it; what a dataset keeps is decided when it is made",
            )
        wanted = {f.name: f for f in self._reader.schema}
        there = {f.name: f for f in opened.schema}
        if wanted and wanted != there:
            name = next(n for n in sorted({*wanted, *there}) if wanted.get(n) != there.get(n))
            raise InvalidArgument(
                f"{self._id} exists with other fields: {name} is {_described(there.get(name))},"
                f" not {_described(wanted.get(name))}.",
                hint="another name, or the fields that it has",
            )

    # -- the end

    def dataset(self) -> Dataset:
        """Open the dataset at its newest version."""
        return open_dataset(str(self._id), home=self._given_home)

    def close(self) -> None:
        """Commit everything, open episodes as cut ones, and let others write.

        Raises
        ------
        RldsError
            The last commit failed, and its episodes are lost. The writer is closed nevertheless.
        """
        if self._ended:
            return
        self._check_usable()
        try:
            try:
                with self._state:
                    self._failed = None
                    self._put_open(final=True)
            finally:
                self._flush()
        finally:
            with self._state:
                self._ended = True
                self._state.notify_all()
            self._thread.join()
            atexit.unregister(self._close_at_exit)
            if self._appender is not None:
                self._appender.close()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process:
            self.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as e:  # the error of the block goes on
            error.add_note(f"The writer of {self._id} could not commit what was left: {e}")


def _described(f: Field | None) -> str:
    if f is None:
        return "not there"
    return f"{f.dtype} {list(f.shape)}, placed {f.placement}" if f.kind == "array" else f.kind
