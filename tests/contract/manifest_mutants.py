"""Datasets that a stranger has changed: mutants of manifests, documents of arrays and index files, and a look at them.

`mutate` changes one thing or a few in a copy of a dataset; `look` does what commands do with it. Both are
deterministic in the random generator, and know nothing of test frameworks: ``scripts/fuzz.py`` may use them.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from rlds_cli.base.files.sizes import size_on_disk
from rlds_cli.cli.info import _stored
from rlds_cli.dataset import Dataset, open_dataset
from rlds_cli.errors import RldsError
from rlds_cli.keep import reencoding, verification
from rlds_cli.loader import Loader, Slice
from rlds_cli.look import report
from rlds_cli.look.checks.run import check
from rlds_cli.look.report import catalogue
from rlds_cli.make.convert.create import create
from rlds_cli.store import encode_frames

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**32, 2**48, 2**60, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e308,
    math.nan, math.inf, "", "a", "NaN", "..", ".", "/", "../../x", "/etc", "a/../b", "./a", "a//b", "zarr.json",
    "episodes", "c", "observation", "action", "next/reward", "float32", "float64", "object", "O", "V8", "datetime64",
    "str", "<f4", "array", "frames", "text", "mp4", "png", "both", "next", "zarr", "memmap", "local/x",
    "x" * 5000, "\x00", "\x1b[2J", "\ud800", [], {}, [[]], [-1], [0], [3], [2**40, 2**40], [1] * 40,
    {"a": 1}, [None], [{}], ["x"], "0" * 64,
)  # fmt: skip
INTEGERS = (0, 1, 2, 3, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**60, 2**63 - 1, -1, -2, -(2**31), -(2**63))


def sample(home: Path, encoding_: str = "memmap") -> Path:
    """A dataset with arrays, flags, frames, text, columns of its own, splits' worth of episodes; in ``home``."""
    ds = create("local/sample", list(_episodes()), home=home, frames="encoded")
    _say_more(ds.path / "zarr.json")
    return reencoding.reencode("local/sample", to="zarr", home=home).path if encoding_ == "zarr" else ds.path


def _say_more(file: Path) -> None:
    """Add to a manifest what only archives say."""
    document = json.loads(file.read_text())
    low, high = [-1.0, "-Infinity"], [1.0, "Infinity"]
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": low, "high": high}
    parts = {"state": {"type": "Discrete", "n": 3}, "image": {"type": "MultiBinary", "n": [2, 3]}}
    document["attributes"]["rlds"] |= {
        "spaces": {"action": box, "observation": {"type": "Dict", "subspaces": parts}},
        "env": {"id": "Hopper-v4", "fps": 20, "spec": {"id": "Hopper-v4", "max_episode_steps": 9, "kwargs": {}}},
        "facts": {"ref_min_score": 0.0, "ref_max_score": 1.0, "flags": {"terminals": "bool"}, "description": "x"},
        "options": {"portion": {"include": ["*"], "episodes": [0, 3], "files": [1, 2]}, "fields": {"a": "b"}},
        "notes": [{"code": "c", "text": "t", "count": 2, "where": "here"}],
    }
    file.chmod(0o644)
    file.write_text(json.dumps(document))


def _episodes() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for k, length in enumerate((3, 5, 2)):
        yield {
            "observation": {
                "state": rng.standard_normal((length + 1, 3)),
                "image": encode_frames(rng.integers(0, 255, (length + 1, 4, 5, 3), np.uint8), "png"),
            },
            "action": rng.uniform(-1, 1, (length, 2)).astype(np.float32),
            "info": {"word": ["go", "stop", "go", "wait", "go"][:length]},
            "next": {"reward": rng.standard_normal(length), "terminated": np.arange(length) == length - 1},
            "episode": {"task": f"task {k}", "success": k > 0, "operator": k},
        }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a JSON value, itself left out."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += [(*path, key), *places(item, (*path, key))]
    return found


def mutant(document: Any, rng: Random) -> Any:
    """A copy of a JSON value with one to three places changed."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        every = places(changed)
        if not every:
            break
        *way, last = rng.choice(every)
        parent = changed
        for key in way:
            parent = parent[key]
        rng.choice(_CHANGES)(parent, last, changed, rng)
    return changed


def _replace(parent: Any, key: Any, whole: Any, rng: Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(VALUES))


def _near(parent: Any, key: Any, whole: Any, rng: Random) -> None:
    value = parent[key]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _replace(parent, key, whole, rng)
    parent[key] = (
        value + rng.choice(("x", "/", "\n", "é", "/.."))
        if isinstance(value, str)
        else value + rng.choice((-1, 1, 2**32))
    )
    return None


def _delete(parent: Any, key: Any, whole: Any, rng: Random) -> None:
    del parent[key]


def _add(parent: Any, key: Any, whole: Any, rng: Random) -> None:
    value = copy.deepcopy(rng.choice((parent[key], *VALUES)))
    if isinstance(parent, list):
        parent.append(value)
    else:
        parent[rng.choice(("zzz", "shape", "..", "", "type"))] = value


def _swap(parent: Any, key: Any, whole: Any, rng: Random) -> None:
    """Put a value from elsewhere there."""
    found = whole
    for part in rng.choice(places(whole)):
        found = found[part]
    parent[key] = copy.deepcopy(found)


_CHANGES: tuple[Callable[[Any, Any, Any, Random], None], ...] = (_replace, _replace, _near, _near, _delete, _add, _swap)


def mutate(dataset: Path, rng: Random) -> Path:
    """Change one file in the dataset's directory, whose files are writable; returns which."""
    kind = rng.choice(
        ("manifest",) * 5 + ("document",) * 3 + ("numbers",) * 3 + ("bytes", "cut", "lose", "link", "more")
    )
    if kind == "manifest":
        return _rewrite(dataset / "zarr.json", rng, ("attributes", "rlds"))
    if kind == "document":
        return _rewrite(rng.choice(sorted(dataset.rglob("*/zarr.json"))), rng, ())
    files = sorted(p for p in dataset.rglob("*") if p.is_file() and p.name != "zarr.json")
    if kind == "numbers":
        numbers = {"episodes", "offsets", "word", "film", "packets", "first", "spans"}
        files = [p for p in files if numbers & set(p.parts)]
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    if kind == "numbers":
        width = rng.choice((1, 4, 8))
        at = rng.randrange(max(1, len(data) // width)) * width
        data[at : at + width] = (rng.choice(INTEGERS) % 2 ** (8 * width)).to_bytes(width, "little")
    elif kind == "bytes" and data:
        for _ in range(rng.choice((1, 1, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif kind == "more":
        data += bytes(rng.randrange(1, 100))
    file.unlink()
    if kind == "link":
        file.symlink_to("/etc/passwd")
    elif kind != "lose":
        file.write_bytes(data)
    return file


def restore(file: Path, copy_of: Path, original: Path) -> None:
    """Take back what `mutate` did to a file of the dataset in ``copy_of``."""
    file.unlink(missing_ok=True)
    shutil.copyfile(original / file.relative_to(copy_of), file)


def _rewrite(file: Path, rng: Random, below: tuple[str, ...]) -> Path:
    document = json.loads(file.read_text())
    part = document
    for key in below[:-1]:
        part = part[key]
    if below:
        part[below[-1]] = mutant(part[below[-1]], rng)
    else:
        document = mutant(document, rng)
    file.write_text(json.dumps(document))
    return file


def copied(dataset: Path, target: Path) -> Path:
    """A copy whose files may be written."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(dataset, target, copy_function=shutil.copyfile)
    return target


def looks(directory: Path) -> dict[str, Callable[[], object]]:
    """What commands do with a dataset's directory, by name."""
    return {
        "open": lambda: _read(open_dataset(directory)),
        "verify": lambda: verification.verify(directory, jobs=1, progress=False),
        "inspect": lambda: report.summarise(directory, elements=True),
        "episode": lambda: report.describe_episode(directory, 0, elements=True),
        "check": lambda: check(directory),
        "info": lambda: catalogue.card(os.fspath(directory)),
        "load": lambda: next(iter(Loader(directory, 4, backend="numpy", window=Slice(2)))),
        "spaces": lambda: (open_dataset(directory).action_space, open_dataset(directory).observation_space),
        "info in words": lambda: _in_words(directory),
        "usage": lambda: size_on_disk(directory),
    }


def _in_words(directory: Path) -> None:
    found = catalogue.card(os.fspath(directory)).here
    if found is not None and found.manifest is not None:
        list(_stored(found, found.manifest))


def _read(ds: Dataset) -> None:
    for k in range(min(3, ds.num_episodes)):
        ds.episode(k)
    if len(ds):
        ds[: min(4, len(ds))]
        ds.source_of(0) if ds.sources else None
    dict(ds.stats)
    [ds.episodes[name] for name in ds.episodes]
    with warnings.catch_warnings(action="ignore"):  # of a selection of all or of none
        ds.select(where="length > 2 and True")
    repr(ds)


def look(directory: Path) -> dict[str, str]:
    """Do all of `looks`: what the errors of rlds said; any other exception is let through, with a note of the look."""
    said = {}
    for name, act in looks(directory).items():
        try:
            act()
        except RldsError as e:
            said[name] = str(e)
        except Exception as e:
            e.add_note(name)
            raise
    return said
