"""Keys of preprocess jobs, and what they make: built-in functions, a user's own of every unit, shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from loader_data import create, varied

import rlds_cli
from golden import DATA
from rlds_cli import preprocess
from rlds_cli.make.importing import import_files

# A user's module. Its text is part of every key: it stays as it is.
OWN = """\
from pathlib import Path

import numpy as np

from rlds_cli import preprocess


def half(episode, by=2):
    episode["action"] = episode["action"] / np.float32(by)
    return episode


def halves(episode):
    n = len(episode["action"])
    if n < 4:
        return None
    cut = {**episode, "observation": episode["observation"][: n // 2], "action": episode["action"][: n // 2]}
    cut["info"] = {"step": episode["info"]["step"][: n // 2]}
    cut["text"] = episode["text"][: n // 2]
    cut["next"] = {k: v[: n // 2] for k, v in episode["next"].items() if k != "observation"}
    return [cut, episode]


@preprocess.unit("batch")
def twice(batch):
    batch["next"]["reward"] = batch["next"]["reward"] * 2
    return batch


def plus_one(step):
    step["action"] = step["action"] + 1
    return step


@preprocess.unit("window", history=2, future=1)
def around(window):
    return {"known": window["mask"].sum(1).astype(np.float32)}


def centred(step, state):
    step["action"] = step["action"] - state["most"]
    return step


def _fit(batch, state):
    most = np.abs(batch["action"]).max()
    return {"most": most if state is None else max(most, state["most"])}


def _merge(a, b):
    return {"most": max(a["most"], b["most"])}


centred.fit, centred.merge = _fit, _merge


def picky(episode):
    if len(episode["action"]) == 3:
        raise ValueError("three steps")
    return half(episode)


def reads(episode, file):
    episode["action"] = episode["action"] * np.float32(Path(file).read_text())
    return episode


def of_tensors(td):
    td["action"] = td["action"] * 2
    return td
"""


# Jobs that `make test` leaves to `make test-all`.
_MORE = (
    *("batch", "step", "episode with some fields", "episode with an argument", "depends on a file", "window as told"),
    *("TensorDict", "select_fields", "rename_fields", "sparsify_reward", "cast", "crop"),
    *("grayscale", "encode", "concatenate", "scale_reward", "select_episodes", "window"),
)


def collect(directory: Path, *, quick: bool = False) -> dict[str, Any]:
    """Key, fingerprint and changed fields of every job."""
    (directory / "own.py").write_text(OWN)
    (directory / "factor.txt").write_text("3")
    known = create(varied()[:40])
    found: dict[str, Any] = {}
    for name, fn, how in _own(directory):
        if quick and name in _MORE:
            continue
        found[name] = told(preprocess.run(how.pop("source", known), fn, "x", jobs=0, force=True, **how))
    sources = {
        "known": known,
        "cartpole": rlds_cli.download("sample/cartpole-minari", jobs=0),
        "images": import_files(DATA / "lerobot/image_v3", "local/images", jobs=0),
        "goals": rlds_cli.create("local/goals", _goals()),
    }
    for (name, source), (args, label) in BUILTIN.items():
        if quick and name in _MORE:
            continue
        made = preprocess.run(sources[source], name, "x", args=args, jobs=0, force=True)
        found[f"{name}{label} of {source}"] = told(made)
    found["by shards"] = _sharded(known, f"{directory / 'own.py'}:half")
    found["built-in functions"] = {
        b.name: {a.name: "required" if a.required else a.default for a in b.arguments} for b in preprocess.catalogue()
    }
    return found


BUILTIN: Mapping[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("normalise", "known"): ({"fields": "action", "mode": "range"}, " range"),
    ("normalise", "cartpole"): ({}, ""),
    ("cast", "known"): ({"fields": "observation", "dtype": "float32"}, ""),
    ("return_to_go", "known"): ({"gamma": 0.5}, ""),
    ("scale_reward", "known"): ({"scale": 0.5, "shift": 1.0}, ""),
    ("sparsify_reward", "known"): ({}, ""),
    ("reward_from_goal", "goals"): ({"goal": "observation/desired_goal", "achieved": "observation/achieved_goal"}, ""),
    ("resize", "images"): ({"size": [24, 32]}, ""),
    ("crop", "images"): ({"size": [20, 20]}, ""),
    ("grayscale", "images"): ({}, ""),
    ("encode", "images"): ({"codec": "raw"}, " raw"),
    ("select_fields", "known"): ({"drop": ["info"]}, ""),
    ("rename_fields", "known"): ({"names": {"info/step": "info/number"}}, ""),
    ("concatenate", "goals"): ({"fields": ["observation/achieved_goal", "observation/desired_goal"]}, ""),
    ("select_episodes", "known"): ({"where": "length > 2"}, ""),
    ("top_episodes", "known"): ({"percent": 20}, ""),
}


def _own(directory: Path) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    def own(name: str) -> str:
        return f"{directory / 'own.py'}:{name}"

    yield "episode", own("half"), {}
    yield "episode with an argument", own("half"), {"args": {"by": 4}}
    yield "episode with some fields", own("half"), {"fields": ["action"]}
    yield "episodes dropped and split", own("halves"), {}
    yield "batch", own("twice"), {}
    yield "step", own("plus_one"), {"unit": "step"}
    yield "window", own("around"), {}
    yield "window as told", own("around"), {"history": 1, "future": 0}
    yield "two passes", own("centred"), {"unit": "step"}
    yield "some fail", own("picky"), {"keep_going": True}
    yield "a file that it reads", own("reads"), {"args": {"file": "factor.txt"}}
    yield "depends on a file", own("half"), {"depends_on": ["factor.txt"]}
    yield "tensors", own("of_tensors"), {"arrays": "torch"}
    yield (
        "TensorDict",
        own("of_tensors"),
        {"arrays": "tensordict", "unit": "batch", "fields": ["action", "observation"]},
    )
    yield "selection", own("half"), {"source": rlds_cli.open_dataset("local/known").select(where="length > 2")}


def told(ds: rlds_cli.Dataset) -> dict[str, Any]:
    """What a result is known by; shared fields are those of the source."""
    made = dict(ds.manifest.provenance[-1])
    names = ("key", "unit", "function", "code", "changed", "keeps_steps", "state", "depends")
    about: dict[str, Any] = {name: made[name] for name in names if name in made}
    shared = set(ds.manifest.shared)
    return {
        "id": ds.id,
        "fingerprint": ds.fingerprint,
        **about,
        "steps of provenance": len(ds.manifest.provenance),
        "entries of provenance": " ".join(sorted(made)),
        "counts": [ds.num_episodes, ds.num_steps, ds.num_transitions],
        "made": {f.name: f.digest[:12] for f in ds.manifest.fields if f.name not in shared},
    }


def _goals() -> Iterator[dict[str, Any]]:
    for k, n in enumerate((3, 5, 2)):
        walk = np.arange(2.0 * (n + 1)).reshape(n + 1, 2) / 64
        yield {
            "observation": {"achieved_goal": walk, "desired_goal": np.full((n + 1, 2), 0.0625 * k)},
            "action": np.ones((n, 1), np.float32),
            "next": {"reward": np.zeros(n), "truncated": True},
        }


def _sharded(source: rlds_cli.Dataset, fn: str) -> dict[str, Any]:
    for number in (2, 1):
        preprocess.run_shard(source, fn, "shards", shard=(number, 2), jobs=0)
    return told(preprocess.finish(source, fn, "shards", jobs=0))
