"""A growing dataset after a random history, the episodes that it must have, and everything that takes their numbers.

The model is a list of episodes as they were given, with the labels that they got: a fresh dataset is made of it. What
each of `CONSUMERS` returns is the same for both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.archives.exports.exporting import export
from rlds_cli.cli import selecting
from rlds_cli.keep import compacting
from rlds_cli.loader import (
    Episode,
    Loader,
    Pairs,
    Prioritized,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.look.checks import check
from rlds_cli.look.report.diff import compare
from rlds_cli.look.report.episode import describe_episode
from rlds_cli.look.report.html import read_content
from rlds_cli.look.report.summary import summarise

STAMP = 1_700_000_000_123_456_789  # nanoseconds: no float64 has all of its digits
GROWN, FRESH = "local/grown", "local/fresh"
# Of no content: where rows lie, what names episodes for good, and the file that they came from.
UNLIKE = {"start", "id", "source", "row"}


def episode(k: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return episode ``k``: no other one has its length together with its values."""
    steps = int(rng.integers(1, 7))
    about: dict[str, Any] = {"k": k, "stamp": STAMP + k, "name": f"e{k}", "flag": k % 3 == 0, "score": k / 8}
    if rng.random() < 0.4:
        about["note"] = f"note {k}"
    if rng.random() < 0.4:
        about["late"] = STAMP - k
    observation = 100.0 * k + np.arange(steps + 1)[:, None] + np.array([0.0, 0.25])
    if k % 4 == 1:
        observation[0, 1] = np.nan  # something for checks to name
    return {
        "observation": observation.astype(np.float32),
        "action": np.full((steps, 1), float(k), np.float32),
        "word": [f"{k} {t}" for t in range(steps)],
        "next": {
            "reward": (k + np.arange(steps) % 3).astype(np.float64),
            "terminated": np.arange(steps) == steps - 1 if k % 2 else np.zeros(steps, bool),
            "truncated": np.zeros(steps, bool) if k % 2 else np.arange(steps) == steps - 1,
        },
        "episode": about,
    }


class History:
    """Random changes of a growing dataset, each with the same one of the model."""

    def __init__(self, seed: int, size: int = 4) -> None:
        self._rng, self._size = np.random.default_rng(seed), size
        self.episodes: list[dict[str, Any]] = []
        self._made = 0
        self._add()

    @property
    def dataset(self) -> rlds_cli.Dataset:
        return rlds_cli.open_dataset(GROWN)

    def go(self, steps: int) -> None:
        """Make so many changes, and end with dropped episodes before and between others, and one behind them."""
        for _ in range(steps):
            self._rng.choice(np.array([self._add, self._drop, self._label, self._restore, self._compact], object))()
        self._add()
        if len(self.episodes) < 5:
            self._add()
        self._drop([0, 2])
        self._label()

    def _add(self) -> None:
        new = [episode(self._made + i, self._rng) for i in range(int(self._rng.integers(2, self._size + 1)))]
        with rlds_cli.writer(GROWN) as w:
            w.add_episodes(new)
        self._made += len(new)
        self.episodes += [{**e, "episode": dict(e["episode"])} for e in new]

    def _drop(self, which: list[int] | None = None) -> None:
        count = len(self.episodes)
        which = self._some(count // 2) if which is None else which
        if which and len(which) < count:
            self.dataset.select(episodes=which).drop()
            self.episodes = [e for k, e in enumerate(self.episodes) if k not in which]

    def _label(self) -> None:
        which = self._some(len(self.episodes))
        column = str(self._rng.choice(["name", "grade", "note"]))
        if which:
            self.dataset.select(episodes=which).label({column: [f"{column} of {k}" for k in which]})
        for k in which:
            self.episodes[k]["episode"][column] = f"{column} of {k}"

    def _restore(self) -> None:
        before = self.dataset
        episodes = [{**e, "episode": dict(e["episode"])} for e in self.episodes]
        self._drop()
        self._label()
        before.restore()
        self.episodes = episodes

    def _compact(self) -> None:
        compacting.compact(GROWN)

    def _some(self, most: int) -> list[int]:
        count = int(self._rng.integers(0, most + 1))
        return sorted(self._rng.choice(len(self.episodes), count, replace=False).tolist())

    def fresh(self) -> rlds_cli.Dataset:
        """Make an ordinary dataset of the episodes of the model."""
        return rlds_cli.create(FRESH, self.episodes, force=True)


# -- what takes or gives numbers of episodes


def plain(x: Any) -> Any:
    """Return a value that is compared with ``==``, with the types of arrays."""
    if isinstance(x, np.ndarray):
        return (x.dtype.kind, x.dtype.itemsize, x.shape, [repr(v) for v in x.ravel().tolist()])
    if isinstance(x, dict) or hasattr(x, "items"):
        return {str(k): plain(v) for k, v in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    return [plain(v) for v in x] if isinstance(x, list | tuple) else repr(x)


def content(ds: rlds_cli.Dataset) -> Any:
    """Return all that a dataset says of its episodes, and their steps."""
    names = sorted(set(ds.episodes) - UNLIKE)
    columns = {n: plain(ds.episodes[n]) for n in names}
    steps = [plain(dict(ds.episode(k).leaves())) for k in range(ds.num_episodes)]
    return columns, steps, plain(dict(ds[:].leaves())), ds.fingerprint


def _run(ds: rlds_cli.Dataset, fn: Callable[..., Any], **how: Any) -> Any:
    made = preprocess.run(ds, fn, "made", jobs=0, progress=False, force=True, **how)
    return content(made)


def _about(columns: Any, of: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: of(columns[name]) for name in sorted(set(columns) - UNLIKE)}


def of_episodes(ds: rlds_cli.Dataset) -> Any:
    seen: list[Any] = []

    def look(ep: Any) -> Any:
        seen.append(_about(ep["episode"], repr))
        if ep["episode/number"] == 2:
            return None
        ep["episode/seen"] = f"{ep['episode/number']} {ep['episode/k']} {ep['episode/total_reward']}"
        ep["drawn"] = np.full(len(ep["action"]), float(ep["episode/number"]))
        return ep

    return _run(ds, look), seen


def of_transitions(unit: str) -> Callable[[rlds_cli.Dataset], Any]:
    def run(ds: rlds_cli.Dataset) -> Any:
        seen: list[Any] = []

        def look(data: Any) -> Any:
            about = data["episode"]
            seen.append(_about(about, lambda v: plain(np.asarray(v))))
            return {"seen": 1000.0 * np.asarray(about["number"]) + np.asarray(about["k"])}

        how = {"history": 1, "future": 0} if unit == "window" else {}
        return _run(ds, look, unit=unit, **how), seen

    return run


def selections(ds: rlds_cli.Dataset) -> Any:
    last = ds.num_episodes - 1
    parts = [
        ds.select(episodes=[last, 0]),
        ds.select(where="episode >= 1 and total_reward > 0"),
        ds.select(where=f"stamp > {STAMP + 1}"),
        ds.select(where=f"late is not None and late > {STAMP - 6}") if "late" in ds.episodes else ds,
        ds.select(where="not flag").select(episodes=slice(0, 2)),
        *ds.split(0.5, 0.25, seed=3),
        *ds.split(by="flag").values(),
    ]
    return [(content(p), plain(p.stats["action"])) for p in parts if p.num_episodes]


def saved(ds: rlds_cli.Dataset) -> Any:
    made = ds.select(episodes=[ds.num_episodes - 1, 1]).save("saved", force=True)
    return content(made), plain(made.episodes["source_episode"])


def trims(ds: rlds_cli.Dataset) -> Any:
    seen: list[Any] = []

    def look(ep: Any) -> Any:
        seen.append(_about(ep["episode"], repr))
        return None if ep["episode/number"] == 1 else (0, 1 + ep["episode/number"] % ep["episode/length"])

    by_function = ds.trim(look, "trimmed", force=True)
    ranges = {1: [], ds.num_episodes - 1: (0, 1)}
    by_number = ds.trim(ranges, "ranged", force=True)
    some = ds.select(episodes=[2, 0]).trim({0: (0, 1)}, "some", force=True)
    return [(content(d), plain(d.episodes["source_episode"])) for d in (by_function, by_number, some)], seen


def labels(ds: rlds_cli.Dataset, directory: Path) -> Any:
    """By number, for each, by id and by number from a file; under a name, and in place at last."""
    found = [content(ds.select(episodes=[1, 2]).label(where=["one", "two"], name="labelled", force=True))]
    ids = [x.tobytes().hex() for x in ds.episodes["id"]]
    for head, names in (("episode", [str(k) for k in range(ds.num_episodes)]), ("id", ids)):
        lines = [f"{head},of_{head}", *(f"{name},{k * 3}" for k, name in enumerate(names) if k != 1)]
        (directory / "labels.csv").write_text("\n".join(lines) + "\n")
        named, values = selecting.from_file(directory / "labels.csv", rlds_cli.open_dataset(ds.id), named=True)
        found.append(content(named.label(values)))
    newest = rlds_cli.open_dataset(ds.id)
    newest = newest.label(each=list(range(newest.num_episodes)))
    return [*found, content(newest.select(where="each == 1").label(each=None))]


def samplers(ds: rlds_cli.Dataset) -> Iterator[Any]:
    fields = ["observation", "action", "step", "index", "episode/number", "episode/k", "episode/stamp", "episode/name"]
    for window, sampler in (
        (Transition(), Uniform()),
        (Transition(), Shuffled()),
        (Transition(), Weighted("score")),
        (Transition(), Prioritized()),
        (Slice(2), Shuffled()),
        (Slice(2), Pairs()),
        (Episode(), Sequential()),
    ):
        loader = Loader(ds, 8, window=window, sampler=sampler, fields=fields, backend="numpy", seed=5)
        for _, batch in zip(range(3), loader, strict=False):
            yield plain(dict(batch.leaves()))
            if isinstance(sampler, Prioritized):
                loader.update_priorities(batch, np.arange(8) + 1.0)
    some = Loader(ds.select(episodes=[2, 1]), 8, sampler=Sequential(), fields=fields, backend="numpy")
    yield plain(dict(next(iter(some)).leaves()))


def copies(ds: rlds_cli.Dataset) -> Any:
    """Episodes that other datasets take: of batches, by a writer, and by a merge."""
    created = rlds_cli.create("local/copied", (ds.episode(k) for k in range(ds.num_episodes)), force=True)
    with rlds_cli.writer(f"{ds.id}-written", like=ds) as w:
        w.add_episodes(ds.episode(k) for k in (2, 0))
    other = rlds_cli.create("local/other", [episode(900, np.random.default_rng(1))], force=True)
    merged = rlds_cli.merge([ds.select(episodes=[1, 2]), other], "local/merged", column=None, force=True)
    return [content(d) for d in (created, w.dataset(), merged)]


def exports(ds: rlds_cli.Dataset, directory: Path) -> Any:
    """All episodes, and some; an export compares what it wrote with the dataset itself."""
    found = []
    for to, of in (("minari", ds), ("tensordict", ds.select(episodes=[2, 0]))):
        export(of, to, directory / to, lossy=True, jobs=0, progress=False)
        found.append(rlds_cli.import_files(directory / to, f"local/{to}", force=True).fingerprint)
    return found


def checks(ds: rlds_cli.Dataset) -> Any:
    report = check(ds, progress=False)
    return [plain(f) for f in report.findings], rlds_cli.verify(ds.id).ok


def pages(ds: rlds_cli.Dataset) -> Any:
    told = [describe_episode(ds, k) for k in range(ds.num_episodes)]
    summary = summarise(ds)
    page = read_content(ds, progress=False)
    return [_said(plain(x)) for x in (told, summary.episode_columns, summary.returns, summary.lengths, page)]


def _said(x: Any) -> Any:
    """Leave out names of datasets, what `UNLIKE` are, and the order of columns."""
    if isinstance(x, dict):
        return {name: _said(v) for name, v in x.items() if name not in UNLIKE | {"version", "summary"}}
    if isinstance(x, list | tuple):
        return sorted(map(_said, x), key=_name)
    return re.sub("grown|fresh", "", x) if isinstance(x, str) else x


def _name(x: Any) -> str:
    return str(x.get("name") or x.get("key") or "") if isinstance(x, dict) else ""


def same(ds: rlds_cli.Dataset) -> Any:
    """What a comparison with the fresh dataset finds."""
    found = compare(ds, rlds_cli.open_dataset(FRESH))
    return [x for x in plain(found).items() if x[0] not in ("a", "b")]


CONSUMERS: dict[str, Callable[..., Any]] = {
    "content": content,
    "functions of episodes": of_episodes,
    **{f"functions, unit {unit}": of_transitions(unit) for unit in ("step", "batch", "window")},
    "selections": selections,
    "selections that are saved": saved,
    "trims": trims,
    "samplers": lambda ds: list(samplers(ds)),
    "copies": copies,
    "exports": exports,
    "checks": checks,
    "pages": pages,
    "comparison": same,
    "labels": labels,  # at last: they change the dataset
}
