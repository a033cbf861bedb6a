"""Calling the user's function: what it raises, with episode, step and shapes; and the same numbers everywhere.

What the first pass of a function finds out: numbers, texts, arrays, lists and dicts, as JSON that loses nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.errors import DamagedDataset, InvalidEpisode, PreprocessError
from rlds_cli.preprocess import traits
from rlds_cli.preprocess.forms import StepName
from rlds_cli.preprocess.functions import Function, first_pass
from rlds_cli.preprocess.sources import is_users
from rlds_cli.preprocess.task import Task
from rlds_cli.store import arrays
from rlds_cli.store.files import component
from rlds_cli.ted import Array

_ALONE = "--keep-going (keep_going=True) tries each episode alone and leaves out those that fail"


class Given(NamedTuple):
    """What a function is given, and what to call it.

    Parameters
    ----------
    data : object
        Nested fields, in the kind of arrays that the function wants.
    episode : int
        Its number, or that of the first episode of a batch; for the command that runs it again.
    where : object
        As text, the episode and the step, for people.
    seen : callable
        Gives the arrays in ``data``, for their shapes.
    seed : int
        Tells it from all others, for what the function draws.
    step : int or None
        Its number in the episode, where it is a single one; of a `StepName`, that says it.
    """

    data: Any
    episode: int
    where: object
    seen: Callable[[], Mapping[str, Array]]
    seed: int = 0
    step: int | None = None
    is_single: bool = True


class Caller:
    """Calls the function of a task, and the ``fit`` of its first pass."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._function = task.function.load()
        # In the first pass there is no state yet, and the function itself is not called.
        fits = first_pass(self._function) is not None
        state = {"state": from_json(task.state) if task.state is not None else None} if fits else {}
        self._args = traits.complete(self._function, task.dataset, {**task.args, **state})

    def __call__(self, given: Given) -> Any:
        """What the function returns.

        Raises
        ------
        PreprocessError
            The function raised; its own exception is the cause.
        """
        return self.of(given.data, lambda: given)

    def of(self, data: Any, given: Callable[[], Given]) -> Any:
        """What the function returns of ``data``; only where it raises, what it was ``given`` is asked for.

        The pieces of a generator come one at a time: it may fill the arrays of one piece anew for the next.
        """
        try:
            result = self._function(data, **self._args)
        except (Exception, SystemExit) as e:
            raise self._failure(e, "", given()) from e
        return self._pieces(result, given) if isinstance(result, GeneratorType) else result

    def _pieces(self, generator: Iterator[Any], given: Callable[[], Given]) -> Iterator[Any]:
        try:
            yield from generator
        except (Exception, SystemExit) as e:
            raise self._failure(e, "", given()) from e

    def fit(self, state: Any, given: Given) -> Any:
        """What the first pass makes of ``state`` and what it is given.

        Raises
        ------
        PreprocessError
            ``fit`` raised, or forgot to return the state.
        """
        fit, _ = first_pass(self._function) or (None, None)
        assert fit is not None
        try:
            new = fit(given.data, state, **named_arguments(fit, self._task.args))
        except (Exception, SystemExit) as e:
            raise self._failure(e, ".fit", given) from e
        if new is None:
            raise PreprocessError(
                f"{self._task.function.reference}.fit returned None on {given.where}.",
                hint="fit(batch, state) returns the state, also when it changed it in place; at first it is None",
            )
        return new

    def _failure(self, e: BaseException, of: str, given: Given) -> PreprocessError:
        what = f"{self._task.function.reference}{of} raised {type(e).__name__}: {e}{line_of(e)}"
        where = given.where
        episode, step = where.at if isinstance(where, StepName) else (given.episode, given.step)
        failed = f"{what} on {where}: {shapes(given.seen())}."
        return PreprocessError(failed, hint=again(self._task, episode, step) if given.is_single else _ALONE).at(
            episode, step
        )

    @contextmanager
    def refusing(self, episode: int) -> Iterator[None]:
        """Say of what cannot be stored that the function returned it."""
        try:
            yield
        except InvalidEpisode as e:
            message = f"{self._task.function.reference}: {e.message}"
            raise PreprocessError(message, hint=e.hint or again(self._task, episode)).at(episode) from e


def named_arguments(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Of ``args``, those that a ``fit`` or ``merge`` takes by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some built into Python
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(args)
    taken = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in args.items() if name in taken}


def shapes(arrays: Mapping[str, Array]) -> str:
    """``observation float32 [1001, 11], action float32 [1000, 3]``."""
    return ", ".join(f"{n} {'text' if a.dtype == object else a.dtype} {list(a.shape)}" for n, a in arrays.items())


def again(task: Task, episode: int, step: int | None = None) -> str:
    """What to type to see it happen."""
    f = task.function
    words = words_of(f, task.unit, task.span, task.arrays, task.args)
    if words is None:
        at, what = ("", "episode") if step is None else (f", step={step}", "step")
        return f"rlds_cli.preprocess.attempt(dataset, {f.name}, episode={episode}{at}) runs that {what} alone"
    which = f"--episode {episode}" if step is None else f"--episode {episode} --step {step}"
    return f"rlds preprocess {task.dataset.id} {words} {which} -j 0"


def words_of(
    f: Function, unit: str, span: tuple[int, int], arrays: str, args: Mapping[str, Any], of: str = ""
) -> str | None:
    """How the command line names a function and what goes with it; None where it cannot.

    ``of`` stands before the names of its arguments, where there are several functions.
    """
    if f.file is None and (f.module is None or f.module == "__main__"):
        return None
    words = [f"--fn {f.reference}"]
    words += [f"--unit {unit}"] if of or unit != (f.unit or "episode") else []
    words += [f"--history {span[0]} --future {span[1]}"] if span != f.span and not of else []
    words += [f"--arrays {arrays}"] if of or arrays != "numpy" else []
    words += [f"--arg {of}{k}={v}" for k, v in args.items() if isinstance(v, str | int | float)]
    return " ".join(words)


def line_of(e: BaseException) -> str:
    """Where it was raised: the last line of the user's own code, when that is on the way."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename != __file__]
    own = [f for f in frames if is_users(Path(f.filename))] or frames
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def seed(task: Task, number: int) -> None:
    """Seed the global generators for one episode or batch: a function that draws gives the same wherever it runs."""
    digest = hashlib.sha256(f"{task.source} {number}".encode()).digest()
    value = int.from_bytes(digest[:4], "little")
    random.seed(value)
    np.random.seed(value)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(value)


@contextmanager
def undisturbed(task: Task) -> Iterator[None]:
    """Restore the global random generators and torch's number of threads afterwards; torch runs on one thread inside.

    With several threads the order in which floats are summed, and so the result, would depend on the machine.
    """
    kept = random.getstate(), np.random.get_state()
    with _single_thread_torch(task):
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


@contextmanager
def _single_thread_torch(task: Task) -> Iterator[None]:
    """Run torch on one thread, if the task uses it, and restore its generator and its number of threads.

    A function may import torch in the middle of its first call, in each worker anew. Torch is imported before that, so
    that this call is seeded like all others.
    """
    if task.arrays != "numpy" or task.function.uses_torch:
        with suppress(ImportError):
            importlib.import_module("torch")
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


_ARRAY = "__array__"
_INLINE = 4096  # characters of a state that stand in the manifest too


def to_json(state: Any, where: str) -> str:
    """A state as text. Tuples become lists, tensors and NumPy's numbers arrays; arrays keep their dtype.

    Raises
    ------
    PreprocessError
        It holds something else; ``where`` says who returned it.
    """
    return json.dumps(_encode(state, where, ""), sort_keys=True)


def from_json(text: str, *, writeable: bool = False) -> Any:
    """The state; its arrays are read-only unless said otherwise, for every call is given the same."""
    return _decode(json.loads(text), writeable)


def digest(text: str) -> str:
    """The sha256 of a state."""
    return hashlib.sha256(text.encode()).hexdigest()


def in_provenance(text: str, name: str) -> dict[str, Any]:
    """What the manifest says of a state that is kept as the metadata ``name``; a short one stands there as well."""
    said: dict[str, Any] = {"metadata": name, "sha256": digest(text)}
    return {**said, "value": json.loads(text)} if len(text) <= _INLINE else said


def state(ds: Dataset, function: str | None = None) -> Any:
    """What a function found out in its first pass, when it made ``ds``.

    Parameters
    ----------
    ds : Dataset
        A derived dataset, or one that was derived of one.
    function : str, optional
        The function's name; by default the last that had a first pass.

    Returns
    -------
    Any
        What its ``fit`` and ``merge`` returned last; arrays read-only.

    Raises
    ------
    PreprocessError
        There is none.

    Examples
    --------
    >>> preprocess.state(ds)["mean"]  # doctest: +SKIP
    """
    for step in reversed(ds.manifest.provenance):
        if "state" in step and function in (None, step.get("function")):
            path = ds.path.joinpath("metadata", *map(component, step["state"]["metadata"].split("/")))
            try:
                return from_json(arrays.read_string(path))
            except (ValueError, TypeError, KeyError, RecursionError) as e:
                raise DamagedDataset(f"{path} holds no state: {e}.", hint=f"rlds verify {ds.id}") from e
    which = f"called {function} " if function else ""
    raise PreprocessError(f"{ds.id} was made by no function {which}with a first pass (fit, merge).")


def _encode(value: Any, where: str, at: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise PreprocessError(f"{where}: the state{at} has the key {key!r}; keys are texts.")
        return {key: _encode(item, where, f"{at}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, where, f"{at}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf" and value.dtype != np.longdouble:
        return {_ARRAY: value.dtype.name, "shape": list(value.shape), "values": np.ravel(value).tolist()}
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise PreprocessError(
        f"{where}: the state{at} is {kind}.",
        hint="a state is made of numbers, texts, arrays of numbers, lists, dicts and None",
    )


def _decode(value: Any, writeable: bool) -> Any:
    if isinstance(value, list):
        return [_decode(item, writeable) for item in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY not in value:
        return {key: _decode(item, writeable) for key, item in value.items()}
    array = np.array(value["values"], value[_ARRAY]).reshape(value["shape"])
    array.flags.writeable = writeable
    return array if array.ndim else array[()]


def brief(value: Any) -> str:
    """A state in a line, for people: of arrays the shape, of numbers four digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {brief(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list):
        return f"[{len(value)}]"
    return f"{value:.4g}" if isinstance(value, float | np.floating) and math.isfinite(value) else str(value)
