"""Call the user's function with seeded generators, and report its errors with episode, step and shapes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.errors import InvalidEpisode, PreprocessError
from rlds_cli.preprocess import builtin
from rlds_cli.preprocess.functions import Function, first_pass
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, WritePlan
from rlds_cli.preprocess.sources import is_users
from rlds_cli.preprocess.stacking import LOOP
from rlds_cli.preprocess.task import Failure, Task
from rlds_cli.store import FAILURES
from rlds_cli.ted import Note

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

_ALONE = "--keep-going (keep_going=True) tries each episode alone and leaves out those that fail"


class CallInput(NamedTuple):
    """The input of one call of a function.

    Parameters
    ----------
    data : object
        Nested fields, in the kind of arrays that the task asks for.
    episode : int
        Number of the episode, or of the first one in a batch; the command that repeats the call names it.
    where : str
        The episode and the step in words.
    seen : callable
        Returns the arrays in ``data``; error messages state their shapes.
    seed : int
        A number unique to this call, from which the random generators are seeded.
    step : int or None
        Number of the step in its episode, if the input is a single step.
    is_single : bool
        The input comes from one episode.
    """

    data: Any
    episode: int
    where: str
    seen: Callable[[], Mapping[str, Array]]
    seed: int = 0
    step: int | None = None
    is_single: bool = True


class Caller:
    """Calls the function of a task with the ``state`` of its first pass, or ``fit`` in the first pass itself."""

    def __init__(self, task: Task, state: Any = None) -> None:
        self._task = task
        self._function = task.function.load()
        given = {"state": state} if first_pass(self._function) else {}
        args = builtin.complete(self._function, task.dataset, {**task.args, **given})
        self.function = partial(self._function, **args) if args else self._function

    def __call__(self, data: Any, given: Callable[[], CallInput]) -> Any:
        """Call the function and return its result; ``given`` describes the input and is called for an error alone.

        A generator is passed on as one and not collected: it may reuse its arrays for the next piece.

        Raises
        ------
        PreprocessError
            The function raised; its own exception is the cause.
        """
        try:
            result = self.function(data)
        except (Exception, SystemExit) as e:
            raise self.failure(e, given()) from e
        return self._pieces(result, given) if isinstance(result, GeneratorType) else result

    def _pieces(self, generator: Iterator[Any], given: Callable[[], CallInput]) -> Iterator[Any]:
        try:
            yield from generator
        except (Exception, SystemExit) as e:
            raise self.failure(e, given()) from e

    def fit(self, state: Any, given: CallInput) -> Any:
        """Call ``fit`` with the input and the state so far, and return the new state.

        Raises
        ------
        PreprocessError
            ``fit`` raised, or returned None.
        """
        fit, _ = first_pass(self._function) or (None, None)
        assert fit is not None
        try:
            new = fit(given.data, state, **accepted_arguments(fit, self._task.args))
        except (Exception, SystemExit) as e:
            raise self.failure(e, given, ".fit") from e
        if new is None:
            raise PreprocessError(
                f"{self._task.function.reference}.fit returned None on {given.where}.",
                hint="fit(batch, state) returns the state, even if changed in place; it is None at first",
            )
        return new

    def failure(self, e: BaseException, given: CallInput, of: str = "") -> PreprocessError:
        """Return the error for an exception that the function, or its attribute ``of``, raised."""
        what = f"{self._task.function.reference}{of} raised {type(e).__name__}: {e}{raised_at(e)}"
        failed = f"{what} on {given.where}: {shapes(given.seen())}."
        hint = rerun_command(self._task, given.episode, given.step) if given.is_single else _ALONE
        return PreprocessError(failed, hint=hint).at(given.episode, given.step)

    @contextmanager
    def refusing(self, episode: int) -> Iterator[None]:
        """Turn InvalidEpisode inside the block into a PreprocessError that names the function."""
        try:
            yield
        except InvalidEpisode as e:
            message = f"{self._task.function.reference}: {e.message}"
            raise PreprocessError(message, hint=e.hint or rerun_command(self._task, episode)).at(episode) from e

    def left_out(self, episode: int, plan: WritePlan, e: PreprocessError) -> Note:
        """Return the failure of an episode as a note, if the task continues without that episode.

        Raises
        ------
        PreprocessError
            The failure itself, if the task stops at one.
        Otherwise
            The plan keeps all episodes.
        """
        if not self._task.keep_going:
            raise e
        if plan.kept:
            raise AssumptionBroken(Assumptions(kept=False))
        failure = Failure(
            id=self._task.dataset.id,
            episode=episode,
            step=e.step,
            function=self._task.function.reference,
            exception=type(e.__cause__).__name__ if e.__cause__ is not None else "",
            message=e.message,
            again=e.hint or "",
        )
        what = f"episodes on which the function failed were left out: {FAILURES}"
        return Note(Note.FAILED, what, where=json.dumps(asdict(failure)))


def accepted_arguments(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``fit`` or ``merge`` accepts by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions built into Python have no signature
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(args)
    taken = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in args.items() if name in taken}


def shapes(arrays: Mapping[str, Array]) -> str:
    """Describe arrays: ``observation float32 [1001, 11], action float32 [1000, 3]``."""
    return ", ".join(f"{n} {'text' if a.dtype == object else a.dtype} {list(a.shape)}" for n, a in arrays.items())


def rerun_command(task: Task, episode: int, step: int | None = None) -> str:
    """Return the command that runs one episode or step again."""
    f = task.function
    words = command_words(f, task.unit, task.span, task.arrays, task.args)
    if words is None:
        at, what = ("", "episode") if step is None else (f", step={step}", "step")
        return f"rlds_cli.preprocess.attempt(dataset, {f.name}, episode={episode}{at}) runs that {what} alone"
    which = f"--episode {episode}" if step is None else f"--episode {episode} --step {step}"
    return f"rlds preprocess {named(task.dataset)} {words} {which} -j 0"


def named(source: Dataset) -> str:
    """Return what a command calls a source: its address if it is opened there, else its id."""
    return source.store.address or source.id


def command_words(f: Function, unit: str, span: tuple[int, int], arrays: str, args: Mapping[str, Any]) -> str | None:
    """Return the options that name a function on the command line; None if it cannot be named there."""
    if f.file is None and (f.module is None or f.module == "__main__"):
        return None
    words = [f"--fn {f.reference}"]
    words += [f"--unit {unit}"] if unit != (f.unit or "episode") else []
    words += [f"--history {span[0]} --future {span[1]}"] if span != f.span else []
    words += [f"--arrays {arrays}"] if arrays != "numpy" else []
    words += [f"--arg {k}={v}" for k, v in args.items() if isinstance(v, str | int | float)]
    return " ".join(words)


def raised_at(e: BaseException) -> str:
    """Return `` (file.py, line 12)``: the last line of the user's own code in the traceback."""
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename not in (__file__, LOOP)]
    own = [f for f in frames if is_users(Path(f.filename))] or frames
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def seed(task: Task, number: int | str) -> None:
    """Seed the global generators for one episode or batch, so that every worker draws the same numbers.

    A text names an episode of a growing dataset: the same numbers are drawn for it at every version.
    """
    source = task.dataset.id if isinstance(number, str) else task.source
    digest = hashlib.sha256(f"{source} {number}".encode()).digest()
    value = int.from_bytes(digest[:4], "little")
    random.seed(value)
    np.random.seed(value)
    if (torch := sys.modules.get("torch")) is not None:
        # torch.manual_seed records the stack for each device that is not in use yet: 0.1 to 3 ms.
        (torch.manual_seed if _has_devices(torch) else torch.default_generator.manual_seed)(value)


@cache
def _has_devices(torch: Any) -> bool:
    """Return whether torch can compute elsewhere than on the processor."""
    kinds = (torch.cuda, torch.backends.mps, getattr(torch, "xpu", None))
    return any(kind is not None and kind.is_available() for kind in kinds)


@contextmanager
def undisturbed(task: Task) -> Iterator[None]:
    """Restore the global random generators and torch's number of threads afterwards; torch runs on one thread inside.

    With several threads the order in which floats are summed, and so the result, would depend on the machine.

    A function may import torch in the middle of its first call, in each worker anew. Torch is imported before that, so
    that this call is seeded like all others.
    """
    kept = random.getstate(), np.random.get_state()
    if task.arrays != "numpy" or task.function.uses_torch:
        with suppress(ImportError):
            importlib.import_module("torch")
    torch = sys.modules.get("torch")
    if torch is not None:
        threads, state = torch.get_num_threads(), torch.get_rng_state()
        torch.set_num_threads(1)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        if torch is not None:
            torch.set_num_threads(threads)
            torch.set_rng_state(state)
