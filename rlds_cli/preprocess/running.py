"""From a task to a published dataset: planned, done in parts, resumed, and published as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from rlds_cli import home, settings
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import PreprocessError
from rlds_cli.home import Home
from rlds_cli.locking import exclusive
from rlds_cli.preprocess import fitting, functions, job, states, task
from rlds_cli.preprocess.job import PreprocessJob
from rlds_cli.preprocess.plan import Known, Otherwise, Plan
from rlds_cli.preprocess.task import Arrays, Task, Unit
from rlds_cli.progress import Event, Progress, silent
from rlds_cli.settings import StrPath
from rlds_cli.store import arrays as store_arrays
from rlds_cli.store import manifest, publishing
from rlds_cli.store.build import write_rows
from rlds_cli.store.finish import Description, finish
from rlds_cli.store.manifest import Stats
from rlds_cli.store.names import component
from rlds_cli.store.sharing import Shared
from rlds_cli.ted import Array


def run(
    source: str | os.PathLike[str] | Dataset,
    fn: Callable[..., Any] | str,
    name: str | None = None,
    *,
    unit: Unit | None = None,
    history: int | None = None,
    future: int | None = None,
    arrays: Arrays = "numpy",
    args: Mapping[str, Any] = {},
    fields: Sequence[str] | None = None,
    jobs: int | None = None,
    force: bool = False,
    cache_dir: StrPath | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Apply a function to every episode, batch or step; the result is a dataset of its own, ``ID@NAME``.

    The source is never changed. What the function leaves untouched is shared with it on disk. Running again with the
    same function, arguments and source returns at once; interrupted, the same call goes on where it was.

    Parameters
    ----------
    source : str, path or Dataset
        A dataset that is on this disk, or a selection of its episodes.
    fn : callable or str
        The function; ``"module:function"`` or ``"file.py:function"``. With unit ``episode`` (the default) it is given
        nested fields: ``observation`` [T+1, ...] (T rows where the final one is not recorded), ``action`` [T, ...],
        ``next/reward``, ``next/terminated`` and ``next/truncated`` [T], frames decoded, text as object arrays; all
        writable copies. It returns the same kind of dict, of any length; None drops the episode, a list splits it.
        With ``batch`` it is given transitions as a loader's batch has them, ``next/reward`` [B, 1], and with ``step``
        one of them; it returns as many. With ``window`` it is given steps with their neighbours in the episode, [B,
        L, ...], and ``mask`` [B, L], False outside of it; it returns what it adds or changes, [B, ...].
    name : str, optional
        The function's name unless given.
    unit : {"episode", "batch", "step", "window"}, optional
        What the function is given at a time; else what its decorator ``unit`` says, else ``episode``.
    history, future : int, optional
        Of unit ``window``: how many steps before and after each it sees; else as the decorator says.
    arrays : {"numpy", "torch", "tensordict"}
        What values are. A TensorDict holds the transitions of an episode or batch, batch size [T] or [B].
    args : mapping
        Keyword arguments of the function.
    fields : sequence of str, optional
        Fields that are read and given to it; the others are carried over.
    jobs : int, optional
        Worker processes; 0 and 1 work in this one. Their number does not change a byte.
    force : bool
        Do it again, and replace a dataset of this name.

    Raises
    ------
    PreprocessError
        The function is not found, fails, or returns what cannot be stored; episode and field are named. Nothing is
        published.
    NameTaken
        The name exists and was made otherwise.
    DatasetNotFound, UnknownField
        There is no such source, or field.

    Examples
    --------
    >>> ds = run("d4rl/hopper-medium-v2", "my_prep:norm", args={"eps": 1e-3})  # doctest: +SKIP
    >>> ds.id  # doctest: +SKIP
    'd4rl/hopper-medium-v2@norm'
    """
    dataset = source if isinstance(source, Dataset) else open_dataset(source, cache_dir=cache_dir)
    with functions.importable((str(Path.cwd()),)):
        t = task.describe(dataset, fn, name, unit=unit, span=(history, future), arrays=arrays, args=args, fields=fields)
        with functions.importable(t.function.path):
            _make(t, cache_dir, jobs=jobs, force=force, progress=progress or silent)
    return open_dataset(str(t.id), cache_dir=cache_dir)


def _make(t: Task, cache_dir: StrPath | None, *, jobs: int | None, force: bool, progress: Progress) -> None:
    where = settings.read(cache_dir)
    if not force and _is_made(t, where):
        progress(Event(str(t.id), "note", note="is here: made before of the same source, function and arguments"))
        return
    place = Home(where.home)
    with exclusive(place, t.id, progress):
        if not force and _is_made(t, where):
            return  # by whoever held the lock
        work = place.partial(t.id, t.key[:16])
        _forget_others(place, t, None if force else work)
        work.mkdir(parents=True, exist_ok=True)
        _publish(t, place, work, jobs, progress)


def _is_made(t: Task, where: settings.Settings) -> bool:
    path = home.find(t.id, where)
    if path is None:
        return False
    t.check_name(manifest.read(path))
    return True


def _forget_others(place: Home, t: Task, keep: Path | None) -> None:
    """Remove unfinished work of other functions under this name; it will not be gone on with."""
    mine = place.partial(t.id, "")
    for path in mine.parent.glob(f"{mine.name}*"):
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)


def _publish(t: Task, place: Home, work: Path, jobs: int | None, progress: Progress) -> None:
    known = _recall(work)
    t = fitting.fitted(t, work, workers=lambda seconds: _workers(t, jobs, seconds, progress), progress=progress)
    while True:
        plan, seconds = job.plan(t, known)
        todo = PreprocessJob(t, plan, job.parts(t, kept=plan.kept))
        workers = min(_workers(t, jobs, seconds * t.dataset.num_steps, progress), len(todo.parts))
        try:
            built = write_rows(todo, work, jobs=workers, progress=progress)
        except Otherwise as e:
            known = known | e.known
            _remember(work, known)
            progress(Event(str(t.id), "note", note=f"writing anew, as a later episode showed: {_learned(e.known)}"))
            continue
        except PreprocessError as e:
            raise _with_what_is_kept(e, work, len(todo.parts)) from e.__cause__
        finish(built, _description(t, plan), metadata=_metadata(t), shared=_shared(t, plan), threads=max(2, workers))
        publishing.publish(built.directory, place.dataset(t.id))
        shutil.rmtree(work, ignore_errors=True)
        return


def _recall(work: Path) -> Known:
    """What an earlier run learned before it was interrupted."""
    try:
        d = json.loads((work / "known.json").read_text())
        return Known(frozenset(d["touched"]), d["kept"], frozenset(d["apart"]))
    except (OSError, ValueError, KeyError):
        return Known()


def _remember(work: Path, known: Known) -> None:
    for path in work.iterdir():
        if path.name != fitting.JOURNAL:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = json.dumps({"touched": sorted(known.touched), "kept": known.kept, "apart": sorted(known.apart)})
    (work / "known.new").write_text(text)
    (work / "known.new").rename(work / "known.json")


def _learned(known: Known) -> str:
    what = [] if known.kept else ["not every episode keeps its length"]
    what += [f"{', '.join(sorted(known.touched))} changed after all"] if known.touched else []
    what += [f"{n} and next/{n} differ" for n in sorted(known.apart)]
    return "; ".join(what)


def _with_what_is_kept(e: PreprocessError, work: Path, parts: int) -> PreprocessError:
    try:
        kept = (work / "journal.jsonl").read_text().count("\n") - 1
    except OSError:
        kept = 0
    tail = f" {kept} of {parts} chunks are kept." if parts > 1 else ""
    return PreprocessError(f"{e.message.rstrip('.')}. Nothing was published.{tail}", hint=e.hint)


def _workers(t: Task, jobs: int | None, seconds: float, progress: Progress) -> int:
    """How many processes work: as asked for, else as many as pay."""
    jobs = job.processes(jobs, seconds)
    if jobs < 2:
        return 0
    why = _cannot_leave(t)
    if why:
        progress(Event(str(t.id), "note", note=f"working in this process: {why}"))
        return 0
    return jobs


def _cannot_leave(t: Task) -> str:
    """Why no other process can run the function; empty where one can."""
    if not t.function.portable:
        return f"{t.function.name} is in no module and cannot be pickled (pip install cloudpickle)"
    script = functions.script()
    if script is None and hasattr(sys.modules.get("__main__"), "__file__"):
        return "a program from standard input cannot be run again by workers"
    if script and script.suffix == ".py" and "__name__" not in script.read_text(errors="replace"):
        return f'workers would run {script.name} again: put its main part under `if __name__ == "__main__":`'
    return ""


def _description(t: Task, plan: Plan) -> Description:
    m = t.dataset.manifest
    spaces = {k: v for k, v in m.spaces.items() if _keeps_space(k, t, plan)}
    return Description(
        id=str(t.id),
        encoding=m.encoding,
        reader="preprocess",
        reader_version=1,
        episodes_by=m.episodes_by,
        facts=m.facts,
        spaces=spaces,
        env=m.env,
        options=m.options,
        provenance=(*m.provenance, {**t.provenance(), **_state(t), "changed": _changed(t, plan)}),
        sources=tuple(_sources(t.dataset.path)),
    )


def _state(t: Task) -> dict[str, Any]:
    return {} if t.state is None else {"state": states.in_provenance(t.state, _state_name(t))}


def _changed(t: Task, plan: Plan) -> list[str]:
    """Fields that are not as they were in the source; new ones and those left out are among them."""
    names = {*t.dataset.schema, *(f.name for f in plan.schema)}
    return sorted(names - plan.same)


def _keeps_space(name: str, t: Task, plan: Plan) -> bool:
    """Whether a space still describes its fields: all are there, and as they were."""
    before = {n for n in t.dataset.schema if n.split("/")[0] == name}
    after = {f.name for f in plan.schema if f.name.split("/")[0] == name}
    return before == after and before <= plan.same


def _sources(path: Path) -> Iterator[dict[str, Any]]:
    if (path / "sources").exists():
        yield from map(json.loads, store_arrays.read_strings(path / "sources"))


def _metadata(t: Task) -> Iterable[tuple[str, Array | str]]:
    for name in t.dataset.manifest.metadata:
        path = t.dataset.path.joinpath("metadata", *(component(c) for c in name.split("/")))
        yield name, store_arrays.read(path) if store_arrays.is_array(path) else store_arrays.read_strings(path)[0]
    if t.state is not None:
        yield _state_name(t), t.state


def _state_name(t: Task) -> str:
    """Where the metadata keep what the first pass found out: under the function's name, the first that is free."""
    name = f"state/{t.function.name}"
    numbered = chain([name], (f"{name}-{n}" for n in count(2)))
    return next(n for n in numbered if n not in t.dataset.manifest.metadata)


def _shared(t: Task, plan: Plan) -> dict[str, Shared]:
    m = t.dataset.manifest
    stats = {n: Stats(**s) for n, s in m.stats.items()}
    fields = {f.name: f for f in m.fields}
    before = {n: plan.renamed.get(n, n) for n in plan.shared}
    return {n: Shared(t.dataset.path, fields[old], stats.get(old), n) for n, old in before.items()}
