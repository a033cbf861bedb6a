"""Small Minari archives, and episodes put together from what the reader gives."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from gymnasium import spaces as g
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from PIL import Image

from rlds_cli.archives import Archive, Plan
from rlds_cli.archives.minari import read as minari
from rlds_cli.ted import CUT, TERMINATED, TRUNCATED, EncodedFrames, EpisodeTable, Note

FORMATS = ["hdf5", "arrow", "parquet"]


@dataclass
class Episodes:
    """What a reader gave: the plan, columns by episode (T+1 rows where placed both, else T), and the table."""

    plan: Plan
    columns: list[dict[str, Any]]
    table: EpisodeTable
    notes: dict[str, Note]
    chunks: int

    def __len__(self) -> int:
        return len(self.columns)


def archive(directory: Path, **options: Any) -> Archive:
    return Archive(directory, tuple(sorted(p for p in directory.rglob("*") if p.is_file())), **options)


def read(directory: Path, *, chunk_rows: int | None = None, **options: Any) -> Episodes:
    plan = minari.plan(archive(directory, **options))
    columns: dict[str, list[Any]] = {f.name: [] for f in plan.schema}
    last, tables, notes, chunks = [], [], list(plan.notes), 0
    for part in plan.parts:
        if chunk_rows:
            part = replace(part, args={**part.args, "chunk_rows": chunk_rows})
        rows = 0
        for chunk in minari.read(plan, part):
            assert len(chunk.episodes) == chunk.last.sum()
            for name, column in chunk.columns.items():
                assert len(column) == len(chunk)
                columns[name] += images(column) if isinstance(column, EncodedFrames) else list(column)
            last += chunk.last.tolist()
            tables.append(chunk.episodes)
            notes += chunk.notes
            rows += len(chunk)
            chunks += 1
        assert rows == part.rows
    table = EpisodeTable.concat(tables)
    episodes = [_episode(plan, columns, int(a), int(n)) for a, n in zip(table.start, table.length, strict=True)]
    assert len(last) == sum(table.length + 1) and sum(last) == len(table)
    merged: dict[str, Note] = {}  # one for each code, which counts those of all texts
    for n in Note.merged(notes):
        merged[n.code] = replace(merged[n.code], count=merged[n.code].count + n.count) if n.code in merged else n
    return Episodes(plan, episodes, table, merged, chunks)


def images(frames: EncodedFrames) -> list[Any]:
    ends = np.cumsum(frames.lengths)
    data = [frames.data[e - n : e].tobytes() for e, n in zip(ends, frames.lengths, strict=True)]
    return [np.asarray(Image.open(io.BytesIO(d))) if d else None for d in data]


def _episode(plan: Plan, columns: Mapping[str, list[Any]], start: int, length: int) -> dict[str, Any]:
    episode = {}
    for f in plan.schema:
        values = columns[f.name][start : start + length + 1]
        if f.placement != "both":
            assert values[-1] is None or not np.any(values[-1]), f"{f.name}: the last row is not empty"
            values = values[:-1]
        episode[f.name] = values if f.kind == "text" else np.array(values)
    return episode


def write(
    directory: Path,
    buffers: list[Any],
    observation_space: Any,
    action_space: Any,
    *,
    data_format: str = "hdf5",
    monkeypatch: Any,
    **options: Any,
) -> Path:
    """Have the real minari library write a dataset; its ``data`` directory."""
    import minari as real

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(directory))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real.create_dataset_from_buffers(
            "made/here-v0",
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
            algorithm_name="hand",
            author="me",
            author_email="me@here",
            code_permalink="https://x",
            **options,
        )
    return directory / "made" / "here-v0" / "data"


def flat(value: Any, name: str) -> dict[str, Any]:
    """Nested dicts and tuples -> names with ``/``."""
    if isinstance(value, dict | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, inner in items for k, v in flat(inner, f"{name}/{key}").items()}
    return {name: value}


def same(got: Any, expected: Any, name: str) -> None:
    """Equal in values, dtype and shape; NaN equals itself."""
    if isinstance(expected, list) and all(isinstance(v, str) for v in expected):
        assert got == expected, name
        return
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype and got.shape == expected.shape, (name, got.dtype, expected.dtype, got.shape)
    np.testing.assert_array_equal(got, expected, err_msg=name)


def by_hand(directory: Path, episodes: list[Mapping[str, Any]], metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a ``data`` directory with h5py: what the library itself would not write."""
    data = directory / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as f:
        for i, columns in enumerate(episodes):
            group = f.create_group(f"episode_{i}")
            for key, value in columns.items():
                if key.startswith("@"):
                    group.attrs[key[1:]] = value
                else:
                    group[key] = value
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    content = {
        "total_episodes": len(episodes),
        "data_format": "hdf5",
        "minari_version": "0.5.4",
        "observation_space": json.dumps(box),
        "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 9}),
    } | dict(metadata or {})
    (data / "metadata.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return data


def plain_episode(steps: int = 4, *, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Columns of an episode that truncates; ``changes`` replace or (with None) remove some."""
    rng = np.random.default_rng(seed)
    truncations = np.zeros(steps, bool)
    truncations[-1:] = True
    columns = {
        "observations": rng.standard_normal((steps + 1, 2)).astype(np.float32),
        "actions": np.arange(steps),
        "rewards": rng.standard_normal(steps),
        "terminations": np.zeros(steps, bool),
        "truncations": truncations,
    } | changes
    return {k: v for k, v in columns.items() if v is not None}


def compare(directory: Path, *, infos: bool = True, chunk_rows: int | None = None) -> Any:
    """Compare every value of every episode with what the real library reads; returns what our reader gave."""
    got = read(directory, chunk_rows=chunk_rows)
    real = MinariDataset(directory)
    assert len(got) == real.total_episodes and sum(got.table.length) == real.total_steps
    for k, episode in enumerate(real.iterate_episodes()):
        expected = flat(episode.observations, "observation") | flat(episode.actions, "action")
        expected |= {"next/reward": episode.rewards}
        expected |= {"next/terminated": episode.terminations, "next/truncated": episode.truncations}
        if infos:
            for name, value in flat(episode.infos or {}, "info").items():
                after = len(value) == len(episode.rewards)
                expected[f"next/{name}" if after else name] = value
        else:
            got.columns[k] = {n: v for n, v in got.columns[k].items() if "info" not in n}
        assert set(got.columns[k]) == set(expected) - {n for n, v in expected.items() if isinstance(v, dict)}
        for name, value in expected.items():
            same(got.columns[k][name], value, f"episode {k}: {name}")
        end = TERMINATED if episode.terminations[-1] else TRUNCATED if episode.truncations[-1] else CUT
        assert got.table.end[k] == end
    return got


def buffer(steps: int, observation: Any, action: Any, *, infos: Any = None, end: str = "truncated", **more: Any) -> Any:
    flags = {"terminated": np.zeros(steps, bool), "truncated": np.zeros(steps, bool)}
    if end:
        flags[end][-1] = True
    return EpisodeBuffer(
        observations=observation,
        actions=action,
        rewards=np.linspace(-1, 1, steps).tolist(),
        terminations=flags["terminated"],
        truncations=flags["truncated"],
        infos=infos,
        **more,
    )


def sampled(space: Any, rows: int, seed: int) -> Any:
    """``rows`` values of a space, stacked as the library's collector stacks them."""
    space.seed(seed)
    if isinstance(space, g.Dict):
        return {k: sampled(v, rows, seed) for k, v in space.spaces.items()}
    if isinstance(space, g.Tuple):
        return tuple(sampled(v, rows, seed) for v in space.spaces)
    values = [space.sample() for _ in range(rows)]
    return values if isinstance(space, g.Text) else np.stack(values)
