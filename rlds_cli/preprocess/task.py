"""What is to be made of what, with which function: the key of a result, and how its manifest tells of it.

Where a function stands in a pipeline, and what of its messages speaks of the pipeline's source.

Episodes that were left out because the function failed on them: ``errors.jsonl`` in the dataset's directory.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli import __version__, ids
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.files import safe as safe_files
from rlds_cli.ids import DatasetId
from rlds_cli.preprocess import functions, sources, traits
from rlds_cli.preprocess.functions import Function
from rlds_cli.preprocess.plan import Known, Otherwise, Plan
from rlds_cli.settings import StrPath
from rlds_cli.store.build import FAILED
from rlds_cli.store.manifest import Manifest
from rlds_cli.ted import FLAGS, Note, join_name
from rlds_cli.text import is_below

ARRAYS = ("numpy", "torch", "tensordict")
PART_ROWS = 1 << 16  # rows of a part, about: parts end where episodes do
BLOCK_ROWS, BLOCK_BYTES = 1 << 14, 16 << 20  # rows and bytes that are read at once, and given to a function of batches
STEP_ROWS = 1 << 10
# What a key is made of, and what to call it.
_LABELS = {
    "source": "source hash",
    "function": "fn",
    "code": "fn source",
    "args": "args",
    "depends": "files that it reads",
    "unit": "unit",
    "window": "history and future",
    "keep_going": "keep_going",
    "arrays": "arrays",
    "fields": "fields",
    "chunk": "chunk",
}


@dataclass(frozen=True)
class Task:
    """A function on a dataset. Picklable where the function is."""

    dataset: Dataset
    function: Function
    id: DatasetId
    unit: str
    arrays: str
    args: Mapping[str, Any]
    fields: tuple[str, ...] | None
    span: tuple[int, int] = (0, 0)  # steps before and after each, of a window
    carried: Mapping[str, str] | None = None  # see `traits.Prepared`
    decoded: tuple[str, ...] = ()
    keep_going: bool = False
    depends_on: tuple[str, ...] = ()  # files that the function reads, beside those that its arguments name
    state: str | None = None  # what the first pass found out, see `states`; not part of the key, which it follows from
    chain: Chain | None = None  # the pipeline that it is of

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "chain": None}  # workers have no use for it

    @property
    def fits(self) -> bool:
        """Whether the function has a first pass."""
        return functions.first_pass(self.function.load()) is not None

    @cached_property
    def whole(self) -> bool:
        """Whether all episodes of the store are to be processed, in their order."""
        return is_whole(self.dataset)

    @cached_property
    def source(self) -> str:
        """Fingerprint of the source; of a selection, with its episodes."""
        return source_of(self.dataset)

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The source's fields that the function is given; the flags are always among them."""
        schema = self.dataset.schema
        if self.fields is None:
            return tuple(schema)
        wanted = {n for key in self.fields for n in _known(self.dataset, key)} | {n for n in FLAGS if n in schema}
        return tuple(n for n in schema if n in wanted)

    @cached_property
    def apart(self) -> frozenset[str]:
        """Fields whose next value the source keeps as a field of its own."""
        return frozenset(n for n in self.dataset.schema if f"next/{n}" in self.dataset.schema)

    @cached_property
    def parts_of_key(self) -> dict[str, Any]:
        """What the result depends on; not workers, nor where the function's file lies."""
        return {
            "source": self.source,
            **identity(self.function, self.args, self.unit, self.span, self.arrays, self.depends_on),
            **({"keep_going": True} if self.keep_going else {}),
            "fields": sorted(self.fields) if self.fields is not None else None,
        }

    @cached_property
    def key(self) -> str:
        """Identifies the result."""
        return hashlib.sha256(json.dumps({"format": 1, **self.parts_of_key}, sort_keys=True).encode()).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """The step that this task adds to the chain in the manifest."""
        return {
            "id": str(self.id),
            "from": self.dataset.id,
            "reference": self.function.reference,
            "files": [list(f) for f in self.function.files],
            **self.parts_of_key,
            **({} if self.function.module or self.function.file else {"held": True}),
            "key": self.key,
            "rlds_version": __version__,
            **({"pipeline": dict(self.chain.record)} if self.chain and self.chain.record else {}),
        }

    def check_name(self, manifest: Manifest) -> None:
        """Raise NameTaken when ``manifest``, of the dataset of this name, is of something else."""
        made = dict(manifest.provenance[-1]) if manifest.provenance else {}
        if made.get("key") == self.key:
            return
        hint = "another name (--name, name=), or --force (force=True) to replace it"
        if str(made.get("id")).lower() != str(self.id).lower():
            raise NameTaken(f"{self.id} exists, and preprocess did not make it.", hint=hint)
        raise NameTaken(f"{self.id} exists and was made otherwise: {self.differs(made)}.", hint=hint)

    def differs(self, made: Mapping[str, Any]) -> str:
        """In what a step of some provenance is other than this one."""
        if "pipeline" in made and not (self.chain and self.chain.record):
            return f"by {len(made['pipeline']['functions'])} functions one after the other"
        return differences(made, self.parts_of_key)


def identity(
    function: Function,
    args: Mapping[str, Any],
    unit: str,
    span: tuple[int, int],
    arrays: str,
    depends_on: Sequence[str] = (),
) -> dict[str, Any]:
    """What the result of a function depends on, but for what it is given."""
    call = function.load()
    own = {} if traits.of(call).version else args  # what built-in ones are given names fields
    depends = sources.of(call, own, depends_on)
    return {
        "function": function.name,
        "code": function.code,
        "args": _plain(args),
        **({"depends": depends} if depends else {}),
        "unit": unit,
        **({"window": list(span)} if unit == "window" else {}),
        "arrays": arrays,
        "chunk": _chunk(function, unit),
    }


def _chunk(function: Function, unit: str) -> list[int]:
    """What is given together, where a result may depend on it: transitions, and the chunks of a first pass."""
    fits = functions.first_pass(function.load()) is not None
    if unit == "episode" and not fits:
        return [1 << 16, 1 << 14, 16 << 20, 1 << 12]  # nothing depends on these; they stay for the sake of older keys
    return [PART_ROWS, BLOCK_ROWS, BLOCK_BYTES, STEP_ROWS, 2]


def differences(made: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """In words, in what two things that a result depends on are not the same."""
    return "; ".join(
        f"{label} was {_said(k, made.get(k))}, is {_said(k, mine.get(k))}"
        for k, label in _LABELS.items()
        if made.get(k) != mine.get(k)
    )


def _said(part: str, value: Any) -> str:
    """A part of a key as messages have it; of a selection, with a hash of which episodes it is."""
    if part == "keep_going":
        return "true" if value else "false"
    if part == "depends":
        return ", ".join(f"{name} ({sha[:8]})" for name, sha in (value or {}).items()) or "none"
    whole, _, episodes = value.partition("+") if part == "source" and value else (value, "", "")
    return _short(whole) + (f" (a selection of episodes, {episodes[:8]})" if episodes else "")


@contextmanager
def described(
    source: str | os.PathLike[str] | Dataset,
    fn: Any,
    name: str | None,
    *,
    cache_dir: StrPath | None,
    **how: Any,
) -> Iterator[Task]:
    """The task that `describe` gives; the function's modules can be imported meanwhile."""
    dataset = source if isinstance(source, Dataset) else open_dataset(source, cache_dir=cache_dir)
    with functions.importable(functions.searched([fn])):
        t = describe(dataset, fn, name, **how)
        with functions.importable(t.function.path):
            yield t


def describe(
    dataset: Dataset,
    fn: Any,
    name: str | None,
    *,
    unit: str | None,
    arrays: str,
    args: Mapping[str, Any],
    fields: Sequence[str] | None,
    span: tuple[int | None, int | None] = (None, None),
    keep_going: bool = False,
    depends_on: Sequence[str | os.PathLike[str]] = (),
) -> Task:
    """Find the function and check what can be checked before it runs."""
    function = functions.find(fn)
    unit, reach = unit_of(function, unit, span)
    if arrays not in ARRAYS:
        raise PreprocessError(f'arrays must not be "{arrays}".', hint=f"one of {', '.join(ARRAYS)}")
    _check_arguments(function, dataset, args)
    assert function.call is not None
    traits.check(function.call, args)
    _check_built_in(function, unit, arrays)
    prepared = traits.prepare(function.call, dataset, args)
    fields = prepared.reads if fields is None else fields
    task = Task(
        prepared.dataset,
        function,
        _id_of(dataset, function, name),
        unit,
        arrays,
        dict(args),
        names_of(fields),
        span=reach,
        keep_going=keep_going,
        depends_on=tuple(os.fspath(p) for p in depends_on),
        carried=prepared.carried,
        decoded=prepared.decoded,
    )
    _check(task)
    return task


def unit_of(function: Function, unit: str | None, span: tuple[int | None, int | None]) -> tuple[str, tuple[int, int]]:
    """The unit of a function and how far its windows reach: as given, else as its decorator says."""
    unit = unit or function.unit or "episode"
    usual = function.span if unit == "window" else (0, 0)
    history, future = (d if g is None else g for g, d in zip(span, usual, strict=True))
    functions.check_unit(unit, history, future)
    return unit, (history, future)


def source_of(dataset: Dataset) -> str:
    """Fingerprint of a dataset; of a selection of some of the episodes, with these."""
    return dataset.manifest.fingerprint if is_whole(dataset) else dataset.fingerprint


def is_whole(dataset: Dataset) -> bool:
    """Whether all episodes of the store are in it, in their order."""
    index = dataset.episodes.index
    everything = dataset.manifest.counts.episodes
    return len(index) == everything and bool(np.array_equal(index, np.arange(everything)))


def _id_of(dataset: Dataset, function: Function, name: str | None) -> DatasetId:
    name = name or function.name.rpartition(".")[2]
    if name == "<lambda>":
        raise PreprocessError("A lambda has no name to call the result by.", hint='name="..."')
    source = ids.parse(dataset.id)
    id = source.with_variant(name)
    if id == source:
        raise PreprocessError(f"The result would replace its own source, {source}.", hint="another name: --name, name=")
    return id


def _check(task: Task) -> None:
    if len(task.dataset.episodes) == 0:
        raise PreprocessError(f"{task.dataset.id} has no episodes here to process.")
    _ = task.read, task.key  # raise what is wrong with fields and args


def names_of(fields: Sequence[str | tuple[str, ...]] | None) -> tuple[str, ...] | None:
    """The names in ``fields``; a lone one counts as a list of one."""
    if fields is None:
        return None
    return tuple(join_name(f) for f in ([fields] if isinstance(fields, str) else fields))


def matching(dataset: Dataset, key: str) -> list[str]:
    """The fields called ``key`` or nested below it, as in a loader: ``next/x`` is also the ``x`` of the row after."""
    schema = dataset.schema
    names = [n for n in schema if is_below(n, key)]
    if key.startswith("next/"):
        twin = key.removeprefix("next/")
        kept_once = [n for n, f in schema.items() if f.placement == "both" and f"next/{n}" not in schema]
        names += [n for n in kept_once if is_below(n, twin)]
    return names


def _known(dataset: Dataset, key: str) -> list[str]:
    return matching(dataset, key) or [dataset.field(key).name]


def _check_arguments(function: Function, dataset: Dataset, args: Mapping[str, Any]) -> None:
    assert function.call is not None
    state = {"state": None} if functions.first_pass(function.call) else {}
    if state.keys() & args.keys():
        raise PreprocessError("state= is what the first pass found out; it cannot be an argument.")
    try:
        traits.complete(function.call, dataset, {**args, **state})
    except TypeError as e:
        given = ", ".join(["one argument", *(f"{k}=..." for k in (*args, *state))])
        raise PreprocessError(
            f"{function.reference}{inspect.signature(function.call)} cannot be called with {given}: {e}.",
            hint="it is called with the data first, and with --arg NAME=VALUE by name",
        ) from e


def _check_built_in(function: Function, unit: str, arrays: str) -> None:
    if function.call is not None and traits.of(function.call).version and (unit, arrays) != ("episode", "numpy"):
        raise PreprocessError(f"{function.name} works on whole episodes of NumPy arrays; leave out unit and arrays.")


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON values, which is how the manifest holds them."""
    try:
        return {str(k): json.loads(json.dumps(v, default=_listed, allow_nan=True)) for k, v in args.items()}
    except (TypeError, ValueError) as e:
        raise PreprocessError(f"Arguments must be numbers, texts, lists, dicts or arrays: {e}.") from e


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise TypeError(f"{type(value).__name__} {value!r} is none of them")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:14]}…" if isinstance(value, str) and len(text) > 24 else text


Unit = Literal["episode", "batch", "step", "window"]
Arrays = Literal["numpy", "torch", "tensordict"]
_COMMANDS = ("rlds preprocess ", "rlds_cli.preprocess.")


@dataclass(frozen=True)
class Chain:
    """Function ``number`` of ``count``, from 0 on, which works on ``dataset``; the pipeline began with ``source``.

    ``again`` is the command for one episode of the source but for the episode; ``record`` is what the manifest of the
    result says of the pipeline.
    """

    source: Dataset
    dataset: Dataset
    number: int
    count: int
    again: str = ""
    record: Mapping[str, Any] = field(default_factory=dict)

    def origin(self, episode: int) -> int:
        """The episode of the source that episode ``episode`` of the dataset was made of.

        Both come from the same place in the archive; episodes of one archive differ in that.
        """
        if self.number == 0:
            return episode
        mine, source = self.dataset.store.table(), self.source.store.table()
        same = (source.row == mine.row[episode]) & (source.source == mine.source[episode])
        candidates = [k for k in same.nonzero()[0].tolist() if source.group[k] == mine.group[episode]]
        return int(candidates[0]) if candidates else episode

    def told(self, e: PreprocessError) -> PreprocessError:
        """An error that speaks of the source."""
        message = f"Function {self.number + 1} of {self.count}: {e.message}"
        if e.episode is None or self.number == 0:
            e.message, e.args = message, (message,)
            return e
        origin = self.origin(e.episode)
        message += f" Its episode {e.episode:,} is of episode {origin:,} of {self.source.id}."
        hint = self._again(origin) if e.hint and e.hint.startswith(_COMMANDS) else e.hint
        return PreprocessError(message, hint=hint).at(origin)

    def failures(self, notes: Iterable[Note]) -> tuple[Failure, ...]:
        """All failures of the pipeline up to here, by episodes of the source."""
        own = of(notes)
        if self.number == 0:
            return tuple(own)
        of_source = (replace(f, id=self.source.id, episode=self.origin(f.episode)) for f in own)
        return (*read(self.dataset.path), *(replace(f, again=self._again(f.episode)) for f in of_source))

    def notes(self) -> tuple[Note, ...]:
        """What was noted of the functions before."""
        return tuple(Note(**n) for n in self.dataset.manifest.notes) if self.number else ()

    def _again(self, episode: int) -> str:
        return self.again.replace("EPISODE", str(episode))


FILE = "errors.jsonl"


@dataclass(frozen=True, slots=True)
class Failure:
    """One episode that was left out.

    Parameters
    ----------
    id : str
        The source.
    episode : int
        Its number there.
    step : int or None
        Where that is known.
    function : str
    exception : str
        The name of what was raised; empty where something was returned that cannot be stored.
    message : str
        All that is known of it.
    again : str
        The command that makes it happen again.
    """

    id: str
    episode: int
    step: int | None
    function: str
    exception: str
    message: str
    again: str


def left_out(task: Task, episode: int, plan: Plan, e: PreprocessError) -> Note:
    """The failure of an episode as a note of the part that it is of, where the task goes on without it.

    Raises
    ------
    PreprocessError
        It does not: the failure itself.
    Otherwise
        All episodes were to be kept.
    """
    if not task.keep_going:
        raise e
    if plan.kept:
        raise Otherwise(Known(kept=False))
    failure = Failure(
        task.dataset.id,
        episode,
        e.step,
        task.function.reference,
        type(e.__cause__).__name__ if e.__cause__ is not None else "",
        e.message,
        e.hint or "",
    )
    return Note(
        FAILED, f"episodes on which the function failed were left out: {FILE}", where=json.dumps(asdict(failure))
    )


def of(notes: Iterable[Note]) -> Iterator[Failure]:
    """The failures among notes."""
    return (Failure(**json.loads(n.where)) for n in notes if n.code == FAILED)


def told(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes as the manifest has them: failures by their episode alone."""
    return tuple(replace(n, where=_episode(n)) if n.code == FAILED else n for n in notes)


def _episode(n: Note) -> str:
    return f"episode {json.loads(n.where)['episode']}"


def write(directory: Path, found: Iterable[Failure]) -> None:
    """Write ``errors.jsonl``, one failure a line, unless there is none."""
    lines = [json.dumps(asdict(failure)) + "\n" for failure in found]
    if lines:
        directory.mkdir(parents=True, exist_ok=True)
        safe_files.write_bytes(directory / FILE, "".join(lines).encode())


def read(directory: Path) -> tuple[Failure, ...]:
    """The failures that stand in ``errors.jsonl`` of a dataset's directory."""
    try:
        return tuple(Failure(**json.loads(line)) for line in (directory / FILE).read_text().splitlines())
    except OSError:
        return ()
