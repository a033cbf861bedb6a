"""Describe a preprocess task: source, function and options, the key of its result, and its entry in the manifest.

Episodes on which a function fails are left out if the task says so; ``errors.jsonl`` in the dataset's directory lists
them.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlds_cli import __version__
from rlds_cli.base import ids
from rlds_cli.base.files import modules
from rlds_cli.base.files import safe as safe_files
from rlds_cli.base.ids import DatasetId
from rlds_cli.base.settings import StrPath
from rlds_cli.base.text import closest, is_below, join_name
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import NameTaken, PreprocessError
from rlds_cli.preprocess import builtin, functions, sources
from rlds_cli.preprocess.functions import Function
from rlds_cli.store import FAILURES, Manifest
from rlds_cli.ted import FLAGS, Note

Unit = Literal["episode", "batch", "step", "window"]
Arrays = Literal["numpy", "torch", "tensordict"]

ARRAYS = ("numpy", "torch", "tensordict")
PART_ROWS = 1 << 16  # rows of a part, approximately: parts consist of whole episodes
BLOCK_ROWS, BLOCK_BYTES = 1 << 14, 16 << 20  # rows and bytes to read at once, and to pass to a function of batches
STEP_ROWS = 1 << 10
LARGE_ROW = 1 << 12  # bytes of a row that is read only when a function uses it
# Parts of a key, and their names in messages.
_LABELS = {
    "source": "source hash",
    "seen": "place of the source",
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
SOURCES = ("source", "seen")  # parts of a key that say which rows are read


@dataclass(frozen=True)
class Task:
    """A function to run on a dataset; picklable if the function is."""

    dataset: Dataset
    function: Function
    id: DatasetId
    unit: str
    arrays: str
    args: Mapping[str, Any]
    fields: tuple[str, ...] | None
    span: tuple[int, int] = (0, 0)  # history and future of a window
    carried: Mapping[str, str] | None = None  # see `builtin.Prepared`
    decoded: tuple[str, ...] = ()
    keep_going: bool = False
    depends_on: tuple[str, ...] = ()  # files that the function reads, besides those that its arguments name
    state: str | None = None  # of the first pass, as JSON; not in the key, which determines it

    @property
    def fits(self) -> bool:
        """True if the function has a first pass."""
        return functions.first_pass(self.function.load()) is not None

    @cached_property
    def whole(self) -> bool:
        """True if the task processes all episodes of the store, in order."""
        return bool(np.array_equal(self.dataset.episodes.index, self.dataset.store.table.numbers))

    @cached_property
    def source(self) -> str:
        """Fingerprint of the source, or of a selection of its episodes."""
        return self.dataset.store.fingerprint() if self.whole else self.dataset.fingerprint

    @cached_property
    def read(self) -> tuple[str, ...]:
        """Fields of the source that the function receives; always with the flags."""
        schema = self.dataset.schema
        if self.fields is None:
            return tuple(schema)
        wanted = {n for key in self.fields for n in _known(self.dataset, key)} | {n for n in FLAGS if n in schema}
        return tuple(n for n in schema if n in wanted)

    @cached_property
    def later(self) -> frozenset[str]:
        """Fields that are read when the function uses them: frames, texts, and rows of many bytes.

        A TensorDict holds tensors alone, and a function of single steps gets texts as they are.
        """
        if self.arrays == "tensordict":
            return frozenset()
        kinds = ("frames",) if self.unit == "step" else ("frames", "text")
        fields = (self.dataset.schema[n] for n in self.read)
        return frozenset(f.name for f in fields if f.kind in kinds or f.row_bytes >= LARGE_ROW)

    @cached_property
    def apart(self) -> frozenset[str]:
        """Fields whose next value is a separate field of the source."""
        return frozenset(n for n in self.dataset.schema if f"next/{n}" in self.dataset.schema)

    @cached_property
    def parts_of_key(self) -> dict[str, Any]:
        """The inputs that the result depends on; neither workers nor paths of files."""
        return {
            "source": self.source,
            # tells a source whose fingerprint is a claim from others, see `Files.unproved`
            **({"seen": seen} if (seen := self.dataset.store.files.unproved) else {}),
            **identity(self.function, self.args, self.unit, self.span, self.arrays, self.depends_on),
            **({"keep_going": True} if self.keep_going else {}),
            "fields": sorted(self.fields) if self.fields is not None else None,
        }

    @cached_property
    def key(self) -> str:
        """Hash that identifies the result."""
        return hashlib.sha256(json.dumps({"format": 1, **self.parts_of_key}, sort_keys=True).encode()).hexdigest()

    @property
    def pinned(self) -> dict[str, int]:
        """Return the number of the source's version as a member of a record; empty where a fingerprint says it."""
        number = self.dataset.store.table.pinned_version
        return {} if number is None else {"version": number}

    def provenance(self) -> dict[str, Any]:
        """Return the step that this task adds to the provenance in the manifest."""
        return {
            "id": str(self.id),
            "from": self.dataset.id,
            **self.pinned,
            **({} if self.whole else {"of": self.dataset.store.fingerprint()}),  # a selection of its episodes
            "reference": self.function.reference,
            "files": [*map(list, self.function.files)],
            **self.parts_of_key,
            **({} if self.function.module or self.function.file else {"held": True}),
            "key": self.key,
            "rlds_version": __version__,
        }

    def continues(self, made: Mapping[str, Any]) -> bool:
        """Return whether ``made``, a step of a provenance, is this task at another version of its dataset."""
        mine = {k: v for k, v in self.parts_of_key.items() if k not in SOURCES}
        return (
            self.whole
            and bool(self.pinned)
            and "version" in made
            and (str(made.get("id")).lower(), made.get("from")) == (str(self.id).lower(), self.dataset.id)
            and all(made.get(k) == v for k, v in mine.items())
            and not any(k in made and k not in mine for k in _LABELS if k not in SOURCES)
        )

    def check_name(self, manifest: Manifest) -> None:
        """Raise NameTaken if ``manifest``, of the dataset with this id, belongs to another result."""
        made = dict(manifest.provenance[-1]) if manifest.provenance else {}
        if made.get("key") == self.key:
            return
        hint = "another name (--name, name=), or --force (force=True) to replace it"
        if str(made.get("id")).lower() != str(self.id).lower():
            raise NameTaken(f"{self.id} exists, and was not made by preprocess.", hint=hint)
        how = differences(made, self.parts_of_key)
        raise NameTaken(f"{self.id} exists and was made differently: {how}.", hint=hint)


def identity(
    function: Function,
    args: Mapping[str, Any],
    unit: str,
    span: tuple[int, int],
    arrays: str,
    depends_on: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the inputs that the result of a function depends on, except its source."""
    call = function.load()
    own = {} if builtin.traits_of(call).version else args  # arguments of built-in functions name fields, not files
    depends = sources.of(call, own, depends_on)
    # The sizes of calls and chunks: constants where no result depends on them, so that existing keys stay valid.
    chunk = [1 << 16, 1 << 14, 16 << 20, 1 << 12]
    if unit != "episode" or functions.first_pass(call) is not None:
        chunk = [PART_ROWS, BLOCK_ROWS, BLOCK_BYTES, STEP_ROWS, 2]
    return {
        "function": function.name,
        "code": function.code,
        "args": _plain(args),
        **({"depends": depends} if depends else {}),
        "unit": unit,
        **({"window": list(span)} if unit == "window" else {}),
        "arrays": arrays,
        "chunk": chunk,
    }


def differences(made: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """Describe in words how two sets of inputs differ."""
    return "; ".join(
        f"{label} was {_said(k, made.get(k))}, is {_said(k, mine.get(k))}"
        for k, label in _LABELS.items()
        if made.get(k) != mine.get(k)
    )


def _said(part: str, value: Any) -> str:
    """Format a part of a key for messages."""
    if part == "keep_going":
        return "true" if value else "false"
    if part == "depends":
        return ", ".join(f"{name} ({sha[:8]})" for name, sha in (value or {}).items()) or "none"
    return _short(value)


@contextmanager
def described(
    source: str | os.PathLike[str] | Dataset, fn: Any, name: str | None, *, home: StrPath | None = None, **how: Any
) -> Iterator[Task]:
    """Describe a task as `describe` does; the modules of its function can be imported inside the block.

    The source is opened, unless it is an open dataset.
    """
    dataset = source if isinstance(source, Dataset) else open_dataset(source, home=home)
    is_builtin = isinstance(fn, str) and ":" not in fn  # or in the current directory, which is searched first
    with modules.importable(() if is_builtin else (str(Path.cwd()),)):
        t = describe(dataset, fn, name, **how)
        with modules.importable(t.function.path):
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
    """Find the function, and check the options before it runs."""
    function = functions.find_function(fn)
    unit, reach = unit_of(function, unit, span)
    if arrays not in ARRAYS:
        raise PreprocessError(f'arrays must not be "{arrays}".', hint=f"one of {', '.join(ARRAYS)}")
    _check_arguments(function, dataset, args)
    assert function.call is not None
    builtin.check(function.call, args)
    if builtin.traits_of(function.call).version and (unit, arrays) != ("episode", "numpy"):
        raise PreprocessError(f"{function.name} works on whole episodes of NumPy arrays; omit unit and arrays.")
    prepared = builtin.prepare(function.call, dataset, args)
    fields = prepared.reads if fields is None else fields
    task = Task(
        dataset=prepared.dataset,
        function=function,
        id=id_of(dataset, function.name.rpartition(".")[2], name),
        unit=unit,
        arrays=arrays,
        args=dict(args),
        fields=names_of(fields),
        span=reach,
        keep_going=keep_going,
        depends_on=tuple(os.fspath(p) for p in depends_on),
        carried=prepared.carried,
        decoded=prepared.decoded,
    )
    if len(task.dataset.episodes) == 0:
        raise PreprocessError(f"{task.dataset.id} has no episodes here to process.")
    _ = task.read, task.key  # raises if fields or args are invalid
    return task


def unit_of(function: Function, unit: str | None, span: tuple[int | None, int | None]) -> tuple[str, tuple[int, int]]:
    """Return the unit of a function and the reach of its windows: as given, or else from its decorator."""
    unit = unit or function.unit or "episode"
    usual = function.span if unit == "window" else (0, 0)
    history, future = span
    history, future = usual[0] if history is None else history, usual[1] if future is None else future
    functions.check_unit(unit, history, future)
    return unit, (history, future)


def id_of(dataset: Dataset, function: str, name: str | None) -> DatasetId:
    """Return the id of the result of a function: ``ID@NAME``; without a name ``ID@FUNCTION``, or ``ID@PART-FUNCTION``.

    Raises
    ------
    PreprocessError
        There is no name, or it is that of the source.
    """
    source = ids.parse(dataset.id)
    if not name and "<lambda>" in function:
        raise PreprocessError("A lambda has no name for the result.", hint='name="..."')
    name = name or (f"{source.variant}-{function}" if source.variant else function)
    id = source.with_variant(name)
    if id == source:
        raise PreprocessError(f"The result would replace its own source, {source}.", hint="another name: --name, name=")
    return id


def names_of(fields: Sequence[str | tuple[str, ...]] | None) -> tuple[str, ...] | None:
    """Return the names in ``fields``; a single name counts as a list of one."""
    if fields is None:
        return None
    return tuple(join_name(f) for f in ([fields] if isinstance(fields, str) else fields))


def matching(dataset: Dataset, key: str) -> list[str]:
    """Return the field ``key`` or the fields nested below it; ``next/x`` also means the ``x`` of the next row."""
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
        raise PreprocessError("state= holds the state of the first pass; it cannot be an argument.")
    try:
        builtin.complete(function.call, dataset, {**args, **state})
    except TypeError as e:
        given = ", ".join(["one argument", *(f"{k}=..." for k in (*args, *state))])
        signature = inspect.signature(function.call)
        raise PreprocessError(
            f"{function.reference}{signature} cannot be called with {given}: {e}.",
            hint=_argument_like(args, list(signature.parameters)[1:]),
        ) from e


def _argument_like(args: Iterable[str], known: Sequence[str]) -> str:
    """Return the hint for arguments that do not fit: the argument that is spelt like an unknown one."""
    unknown = [name for name in args if name not in known]
    near = closest(unknown[0], known) if unknown else None
    if near is not None:
        return f"--arg {near}=VALUE instead of {unknown[0]}"
    if unknown and closest(unknown[0], ["fields"]):
        return "--fields NAME,NAME chooses the fields that the function receives"
    return "the data is the first argument; --arg NAME=VALUE is passed by name"


def _plain(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON values, as the manifest stores them."""
    try:
        return {str(k): json.loads(json.dumps(v, default=_listed, allow_nan=True)) for k, v in args.items()}
    except (TypeError, ValueError) as e:
        raise PreprocessError(f"Arguments must be numbers, texts, lists, dicts or arrays: {e}.") from e


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return value.__fspath__()
    raise TypeError(f"{type(value).__name__} {value!r} is none of these")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:14]}…" if isinstance(value, str) and len(text) > 24 else text


# -- failures


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that was left out.

    Parameters
    ----------
    id : str
        Id of the source.
    episode : int
        Number of the episode in the source.
    step : int or None
        Number of the step, if it is known.
    function : str
    exception : str
        Name of the exception's class; empty if the function returned something that cannot be stored.
    message : str
        Message with step, shapes and line.
    again : str
        The command that runs the episode again.
    """

    id: str
    episode: int
    step: int | None
    function: str
    exception: str
    message: str
    again: str


def write_failures(directory: Path, notes: Iterable[Note]) -> tuple[Note, ...]:
    """Write the failures among notes to ``errors.jsonl``, if there are any; return the notes for the manifest.

    There is a `Failure` in each line, as its note has it; the manifest names the episode alone.
    """
    lines, shortened = "", list[Note]()
    for note in notes:
        if note.code == Note.FAILED:
            lines += f"{note.where}\n"
            note = replace(note, where=f"episode {json.loads(note.where)['episode']}")
        shortened.append(note)
    if lines:
        safe_files.make(directory)
        safe_files.write_bytes(directory / FAILURES, lines.encode())
    return tuple(shortened)
