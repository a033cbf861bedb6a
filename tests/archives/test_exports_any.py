"""Whatever a dataset holds: each format proves itself, after its losses, or says that it cannot hold it at all."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import rlds_cli
from rlds_cli.archives.exports.exporting import format_of, plan_export
from rlds_cli.errors import ExportError, InvalidEpisode
from rlds_cli.make import importing

FORMATS = ("minari", "d4rl", "robomimic", "zarr-replay-buffer", "mcap", *(["rerun"] if find_spec("rerun") else []))
_NAMES = st.sampled_from(
    [
        "cost",
        "info/x",
        "info/y/z",
        "state",
        "states",
        "infos",
        "info/_index_0",
        "metadata/a",
        "obs/q",
        "mask/b",
        ".",
        "ü",
    ]
)
_TYPES = st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16", "uint64", "complex64", "text"])
_SHAPES = st.sampled_from([(), (1,), (2,), (2, 1), (0,)])
_ROWS = st.sampled_from(["steps", "all", "next"])
_ENDS = st.sampled_from(["terminated", "truncated", "both", "cut"])


def values(kind: str, rows: int, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Random values; texts that are missing, empty or odd among them."""
    if kind == "text":
        return [
            [None, "", "a", "é", "long " * 9, "z\0z", "\udc80"][i] for i in rng.integers(0, 7 if shape else 5, rows)
        ]
    if kind == "bool":
        return rng.random((rows, *shape)) < 0.5
    found = rng.normal(size=(rows, *shape)) * 3
    found.flat[:1] = np.nan
    return np.abs(np.nan_to_num(found)).astype(kind) if np.dtype(kind).kind in "iu" else found.astype(kind)


@st.composite
def datasets(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Episodes with the same fields."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    fields = draw(st.dictionaries(_NAMES, st.tuples(_TYPES, _SHAPES, _ROWS), max_size=4))
    keys = draw(st.sampled_from([("",), ("a",), ("a", "b")]))
    observed = {k: (draw(_TYPES) if k else "float32", draw(_SHAPES)) for k in keys}
    actions = draw(st.sampled_from([("",), ("a",), ("a", "b")]))
    reward = draw(st.sampled_from(["float32", "int64", "", "vector", "keys"]))
    own, whole = draw(st.sampled_from([None, None, "same", "few", "all"])), draw(st.sampled_from([True, True, False]))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        steps, end = draw(st.integers(1, 40)), draw(_ENDS)
        final = whole if own is None else True
        final = final if own or whole else draw(st.booleans())
        last = np.arange(steps) == steps - 1
        inside = (rng.random(steps) < 0.2) & ~last & draw(st.booleans())
        after: dict[str, Any] = {
            "terminated": last & (end in ("terminated", "both")) | inside,
            "truncated": last & (end in ("truncated", "both")),
        }
        e: dict[str, Any] = {"next": after}
        observations = {k: values(kind, steps + final, shape, rng) for k, (kind, shape) in observed.items()}
        e["observation"] = observations.get("", observations)
        e["action"] = rng.normal(size=steps) if actions == ("",) else {k: rng.normal(size=steps) for k in actions}
        if own and not any(kind == "text" for kind, _ in observed.values()):
            moved = {k: v[1:].copy() for k, v in observations.items()}
            for v in moved.values():
                v[: {"same": 0, "few": 1, "all": steps - 1}[own]] = 7
            after["observation"] = moved.get("", moved)
        if reward:
            after["reward"] = (
                {"a": rng.normal(size=steps), "b": np.ones(steps)}
                if reward == "keys"
                else np.ones((steps, 2))
                if reward == "vector"
                else rng.normal(size=steps).astype(reward)
            )
        for name, (kind, shape, rows) in fields.items():
            into, parts = (after if rows == "next" else e), name.split("/")
            for part in parts[:-1]:
                into = into.setdefault(part, {})
            into[parts[-1]] = values(kind, steps + (rows == "all" and final), shape, rng)
        made.append(e)
    return made


@pytest.mark.slow
@settings(max_examples=60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(datasets(), st.booleans())
def test_whatever_a_dataset_holds(tmp_path: Path, episodes: list[dict[str, Any]], some: bool) -> None:
    try:
        ds = rlds_cli.create("local/any", episodes, force=True)
    except InvalidEpisode:
        assume(False)
    ds = ds.select(episodes=list(range(ds.num_episodes))[::-2]) if some else ds
    for to in FORMATS:
        task = "" if format_of(to).instructed else None  # of several texts none is taken
        try:
            losses = plan_export(ds, to, tmp_path / to, task=task).losses
        except ExportError as e:
            assert "could hold" in e.message
            continue
        done = rlds_cli.export(ds, to, tmp_path / to, task=task, lossy=True, force=True, jobs=1)
        assert losses or some or done.fingerprint == ds.fingerprint
        options = {"episodes_by": "timeouts"} if to == "d4rl" and "timeouts" in str(_options(ds, to, tmp_path)) else {}
        again = importing.import_files(
            tmp_path / to, "local/again", reader=format_of(to).reader, force=True, jobs=1, **options
        )
        assert again.fingerprint == done.fingerprint


def _options(ds: rlds_cli.Dataset, to: str, directory: Path) -> Any:
    from rlds_cli.archives.exports.content import Content

    return format_of(to)(Content(ds), directory / to).import_options()
