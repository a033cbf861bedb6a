"""Calling the user's function: what it raises, with episode, step and shapes; and the same numbers everywhere.

What the first pass of a function finds out: numbers, texts, arrays, lists and dicts, as JSON that loses nothing.
"""

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
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np

from rlds_cli.errors import InvalidEpisode, PreprocessError
from rlds_cli.preprocess import traits
from rlds_cli.preprocess.blocks import StepName
from rlds_cli.preprocess.failures import Failure
from rlds_cli.preprocess.fit_state import from_json
from rlds_cli.preprocess.functions import Function, first_pass
from rlds_cli.preprocess.plan import AssumptionBroken, Assumptions, WritePlan
from rlds_cli.preprocess.sources import is_users
from rlds_cli.preprocess.task import Task
from rlds_cli.store.build import FAILED, FAILURES
from rlds_cli.ted import Array, Note

_ALONE = "--keep-going (keep_going=True) tries each episode alone and leaves out those that fail"


class CallInput(NamedTuple):
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

    def __call__(self, given: CallInput) -> Any:
        """What the function returns.

        Raises
        ------
        PreprocessError
            The function raised; its own exception is the cause.
        """
        return self.of(given.data, lambda: given)

    def of(self, data: Any, given: Callable[[], CallInput]) -> Any:
        """What the function returns of ``data``; only where it raises, what it was ``given`` is asked for.

        The pieces of a generator come one at a time: it may fill the arrays of one piece anew for the next.
        """
        try:
            result = self._function(data, **self._args)
        except (Exception, SystemExit) as e:
            raise self._failure(e, "", given()) from e
        return self._pieces(result, given) if isinstance(result, GeneratorType) else result

    def _pieces(self, generator: Iterator[Any], given: Callable[[], CallInput]) -> Iterator[Any]:
        try:
            yield from generator
        except (Exception, SystemExit) as e:
            raise self._failure(e, "", given()) from e

    def fit(self, state: Any, given: CallInput) -> Any:
        """What the first pass makes of ``state`` and what it is given.

        Raises
        ------
        PreprocessError
            ``fit`` raised, or forgot to return the state.
        """
        fit, _ = first_pass(self._function) or (None, None)
        assert fit is not None
        try:
            new = fit(given.data, state, **accepted_arguments(fit, self._task.args))
        except (Exception, SystemExit) as e:
            raise self._failure(e, ".fit", given) from e
        if new is None:
            raise PreprocessError(
                f"{self._task.function.reference}.fit returned None on {given.where}.",
                hint="fit(batch, state) returns the state, also when it changed it in place; at first it is None",
            )
        return new

    def _failure(self, e: BaseException, of: str, given: CallInput) -> PreprocessError:
        what = f"{self._task.function.reference}{of} raised {type(e).__name__}: {e}{raised_at(e)}"
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

    def left_out(self, episode: int, plan: WritePlan, e: PreprocessError) -> Note:
        """Return the failure of an episode as a note, if the task goes on without that episode.

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
            self._task.dataset.id,
            episode,
            e.step,
            self._task.function.reference,
            type(e.__cause__).__name__ if e.__cause__ is not None else "",
            e.message,
            e.hint or "",
        )
        what = f"episodes on which the function failed were left out: {FAILURES}"
        return Note(FAILED, what, where=json.dumps(asdict(failure)))


def accepted_arguments(function: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
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
    words = command_words(f, task.unit, task.span, task.arrays, task.args)
    if words is None:
        at, what = ("", "episode") if step is None else (f", step={step}", "step")
        return f"rlds_cli.preprocess.attempt(dataset, {f.name}, episode={episode}{at}) runs that {what} alone"
    which = f"--episode {episode}" if step is None else f"--episode {episode} --step {step}"
    return f"rlds preprocess {task.dataset.id} {words} {which} -j 0"


def command_words(
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


def raised_at(e: BaseException) -> str:
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
