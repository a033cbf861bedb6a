"""Random LeRobot datasets of all three versions, with traps: columns, cameras, tasks, annotations, clocks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

Rng = np.random.Generator
_FPS = 10


def write(rng: Rng, directory: Path, lengths: list[int]) -> None:
    """Write the episodes of some lengths; ``directory`` is the root of the dataset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    version = str(rng.choice(["v2.0", "v2.1", "v3.0"]))
    dtype = str(rng.choice(["float32", "float64"]))
    features: dict[str, Any] = {
        "observation.state": {"dtype": dtype, "shape": [2]},
        "action": {"dtype": dtype, "shape": [1]},
        **{n: {"dtype": "int64", "shape": [1]} for n in ("episode_index", "frame_index", "index", "task_index")},
        "timestamp": {"dtype": "float32", "shape": [1]},
    }
    chosen = {n for n in ("done", "text", "image", "depth", "language", "gone", "nan") if rng.random() < 0.35}
    images = {f"observation.images.{n}": n for n in ("image", "depth") if n in chosen}
    features |= {key: {"dtype": "image", "shape": [4, 4, 1 if n == "depth" else 3]} for key, n in images.items()}
    features |= {"note": {"dtype": "string", "shape": [1]}} if "text" in chosen else {}
    features |= {"next.done": {"dtype": "bool", "shape": [1]}} if "done" in chosen else {}
    features |= {"language_instruction": {"dtype": "string", "shape": [1]}} if "gone" in chosen else {}
    tables, first = [], 0
    for number, n in enumerate(lengths):
        columns: dict[str, Any] = {
            "observation.state": [row.tolist() for row in rng.normal(size=(n, 2))],
            "action": rng.normal(size=n).tolist(),
            "episode_index": [number] * n,
            "frame_index": [*range(n)],
            "index": [*range(first, first + n)],
            "task_index": [number % 2] * n,
            "timestamp": (np.arange(n) / _FPS + rng.choice([0, 0.002]) * rng.random(n)).tolist(),
        }
        if "nan" in chosen and n:
            columns["action"][0] = float("nan")
        columns |= {key: [{"bytes": _png(rng, kind), "path": None} for _ in range(n)] for key, kind in images.items()}
        columns |= {"note": [None if rng.random() < 0.2 else "x" for _ in range(n)]} if "text" in chosen else {}
        columns |= {"next.done": [k == n - 1 for k in range(n)]} if "done" in chosen else {}
        if "language" in chosen:
            columns |= {
                "language_persistent": [_persistent(rng)] * n,
                "language_events": [_events(rng) for _ in range(n)],
            }
        tables.append(pa.table(columns))
        first += n
    _spoil(rng, tables)
    total = {"codebase_version": version, "fps": _FPS, "features": features, "total_episodes": len(lengths)}
    listed = [
        {"episode_index": k, "length": n + int(rng.random() < 0.02), "tasks": ["a" if k % 2 else "b"]}
        for k, n in enumerate(lengths)
    ]
    tasks = [{"task_index": k, "task": text} for k, text in enumerate("ba")]
    meta, data = directory / "meta", directory / "data" / "chunk-000"
    meta.mkdir(parents=True)
    data.mkdir(parents=True)
    if version == "v3.0":
        places = {"data/chunk_index": 0, "data/file_index": 0}
        (meta / "episodes" / "chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([e | places for e in listed]), meta / "episodes/chunk-000/file-000.parquet")
        texts = pa.table({"task_index": [0, 1], "__index_level_0__": ["b", "a"]})
        pq.write_table(texts, meta / "tasks.parquet")
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), data / "file-000.parquet")
    else:
        for name, lines in (("episodes", listed), ("tasks", tasks if rng.random() < 0.97 else tasks[:1])):
            (meta / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for k, table in enumerate(tables):
            if rng.random() < 0.98:
                pq.write_table(table, data / f"episode_{k:06d}.parquet")
    (meta / "info.json").write_text(json.dumps(total))


def _spoil(rng: Rng, tables: list[Any]) -> None:
    """Take a column from one episode, give it another type, or empty a camera."""
    import pyarrow as pa

    at = int(rng.integers(0, len(tables)))
    name = str(rng.choice(tables[at].column_names))
    kind = str(rng.choice(["fewer", "type", "empty", *["none"] * 6]))
    place = tables[at].schema.get_field_index(name)
    if kind == "fewer":
        tables[at] = tables[at].drop_columns([name])
    elif kind == "type" and pa.types.is_floating(tables[at].schema.field(name).type):
        tables[at] = tables[at].set_column(place, name, tables[at][name].cast(pa.float32()))
    elif kind == "empty":
        column = pa.nulls(tables[at].num_rows, tables[at].schema.field(name).type)
        tables[at] = tables[at].set_column(place, name, column)


def _png(rng: Rng, kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    pixels = rng.integers(0, 65536, (4, 4)).astype("u2") if kind == "depth" else rng.integers(0, 255, (4, 4, 3), "u1")
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _annotation(rng: Rng, styles: list[Any]) -> dict[str, Any]:
    calls = [json.dumps({"name": "say"})] if rng.random() < 0.2 else None
    content = None if calls and rng.random() < 0.5 else str(rng.choice(["lift", "place", ""]))
    style = styles[int(rng.integers(0, len(styles)))]
    return {"role": str(rng.choice(["user", "assistant"])), "content": content, "style": style, "tool_calls": calls}


def _persistent(rng: Rng) -> list[dict[str, Any]]:
    times = rng.choice([0.0, 0.1, 0.3, float("nan")], int(rng.integers(0, 4)))
    return [_annotation(rng, ["subtask", "plan", "a/b"]) | {"timestamp": float(t), "camera": None} for t in times]


def _events(rng: Rng) -> list[dict[str, Any]]:
    cameras = [None, "observation.images.image"]
    found = [_annotation(rng, ["vqa", "interjection", None]) for _ in range(int(rng.choice([0, 0, 1, 2])))]
    return [row | {"camera": cameras[row["style"] == "vqa"]} for row in found]
