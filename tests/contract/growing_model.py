"""Episodes of a growing dataset in plain Python, and its fingerprint computed the slow way from its definition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlds_cli.dataset import Dataset
from rlds_cli.ted import Field

FIELDS = (
    Field("action", "int64", (), "root"),
    Field("half", "float16", (2,), "root"),
    Field("next/reward", "float64", (), "next"),
    Field("next/terminated", "bool", (), "next"),
    Field("next/truncated", "bool", (), "next"),
    Field("note", "str", (), "root", "text"),
    Field("observation/image", "uint8", (4, 4, 1), "both"),
    Field("observation/nothing", "float32", (0,), "both"),
    Field("observation/state", "float32", (3,), "both"),
)
ENDS = ("terminated", "truncated", "cut")


@dataclass(eq=False)
class Episode:
    """One episode: ``rows`` by field, T+1 of observations (T where the final one is unknown), T of others."""

    rows: dict[str, Any]
    end: str
    about: dict[str, Any] = field(default_factory=dict)
    protected: bool = False
    number: int = -1

    @property
    def length(self) -> int:
        return len(self.rows["action"])

    @property
    def observed(self) -> bool:
        return len(self.rows["observation/state"]) > self.length

    @property
    def total_reward(self) -> float:
        return float(self.rows["next/reward"].sum())

    def step(self, t: int) -> dict[str, Any]:
        """The arguments of `Writer.add` for one step."""
        r, after = self.rows, t + 1
        known = after < len(r["observation/state"])
        return {
            "observation": {n: r[f"observation/{n}"][t] for n in ("image", "nothing", "state")},
            "action": r["action"][t],
            "reward": r["next/reward"][t],
            "half": r["half"][t],
            "note": r["note"][t],
            "next_observation": {n: r[f"observation/{n}"][after] for n in ("image", "nothing", "state")}
            if known
            else None,
            "episode": self.about,
            "protected": self.protected,
        }

    def item(self) -> dict[str, Any]:
        """The episode as `Writer.add_episodes` takes it."""
        flags = {"next/terminated": self.end == "terminated", "next/truncated": self.end == "truncated"}
        return {**self.rows, **flags, **({"episode": self.about} if self.about else {})}

    def first(self, steps: int) -> Episode:
        """The episode as it was after so many steps."""
        rows = {n: v[: steps + n.startswith("observation/")] for n, v in self.rows.items()}
        return Episode(rows, "cut", self.about, self.protected)


def draw(rng: np.random.Generator, length: int, *, end: str = "terminated", observed: bool = True) -> Episode:
    """An episode with values of all kinds: NaN, infinities, texts with accents, none, equal ones."""
    n = length + observed
    state = rng.standard_normal((n, 3)).astype(np.float32)
    state[rng.random((n, 3)) < 0.05] = np.nan
    rows = {
        "observation/image": rng.integers(0, 256, (n, 4, 4, 1), np.uint8),
        "observation/nothing": np.zeros((n, 0), np.float32),
        "observation/state": state,
        "action": rng.integers(-(1 << 62), 1 << 62, length),
        "half": rng.standard_normal((length, 2)).astype(np.float16),
        "next/reward": rng.integers(-50, 50, length) / 4,
        "note": [("été", None, "", "a long word", str(rng.integers(1000)))[k] for k in rng.integers(0, 5, length)],
    }
    return Episode(rows, end, {"score": float(rng.integers(10))} if rng.random() < 0.5 else {})


def check(ds: Dataset, expected: Sequence[Episode], *, fingerprint: bool = True) -> None:
    """Compare all that a dataset holds with the episodes that were written."""
    assert ds.episodes["length"].tolist() == [e.length for e in expected]
    assert ds.episodes["end"].tolist() == [e.end for e in expected]
    assert ds.episodes["num_observed"].tolist() == [e.length + e.observed for e in expected]
    assert ds.episodes["total_reward"].tolist() == [e.total_reward for e in expected]
    assert ds.num_transitions == sum(e.length - (not e.observed and e.end != "terminated") for e in expected)
    if any(e.about for e in expected):
        found = [None if v is None or v != v else v for v in ds.episodes["score"].tolist()]
        assert found == [e.about.get("score") for e in expected]
    for k, e in enumerate(expected):
        batch = ds.episode(k)
        for name in (f.name for f in FIELDS if f.name not in ("next/terminated", "next/truncated")):
            got, wanted = batch[name], e.rows[name][: e.length]
            if name == "next/reward":
                got = got[:, 0]
            assert_equal(got, wanted, f"{name} of episode {k}")
            if name.startswith("observation/") and e.observed:
                assert_equal(batch[f"next/{name}"], e.rows[name][1:], f"next/{name} of episode {k}")
        last = np.arange(e.length) == e.length - 1
        assert np.array_equal(batch["next/terminated"][:, 0], last & (e.end == "terminated"))
        assert np.array_equal(batch["next/truncated"][:, 0], last & (e.end != "terminated"))
    if fingerprint:
        assert ds.fingerprint == slow_fingerprint(expected)


def assert_equal(got: Any, wanted: Any, what: str) -> None:
    """Equal bit for bit, NaN as well; texts as lists."""
    if isinstance(wanted, list):
        assert list(got) == wanted, what
    else:
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted, equal_nan=got.dtype.kind == "f"), what


def slow_fingerprint(episodes: Sequence[Episode], fields: Sequence[Field] = FIELDS) -> str:
    """The fingerprint, from the words of docs/reference/fingerprint.md alone."""
    h = hashlib.sha256()
    for f in sorted(fields, key=lambda f: f.name):
        h.update(_hash([f.name, f.dtype, list(f.shape), f.placement, f.kind, f.codec], b"".join(_digests(f, episodes))))
    scores = [e.about.get("score") for e in episodes]
    columns = {
        "length": ("<i8", [e.length for e in episodes]),
        "end": ("u1", [ENDS.index(e.end) for e in episodes]),
        "num_observed": ("<i8", [e.length + e.observed for e in episodes]),
    }
    if any(s is not None for s in scores):
        columns["score"] = ("<f8", [np.nan if s is None else s for s in scores])
    found = {}
    for name, (dtype, values) in columns.items():
        data = np.array(values, dtype).tobytes()
        if name == "score" and None in scores:
            data += bytes(s is None for s in scores)
        found[name] = _hash([name, np.dtype(dtype).name, [], "episode", "array", None], data)
    for name in sorted(found):
        h.update(found[name])
    return f"rlds1:{h.hexdigest()}"


def _hash(head: list[Any], content: bytes) -> bytes:
    return hashlib.sha256(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content).digest()


def _digests(f: Field, episodes: Sequence[Episode]) -> list[bytes]:
    """The sha256 of the rows of each episode that count: T, or T+1 of observations whose final one is known."""
    found = []
    for e in episodes:
        if f.name in ("next/terminated", "next/truncated"):
            last = e.end == "terminated" if f.name == "next/terminated" else e.end != "terminated"
            data = bytes(e.length - 1) + bytes([last])
        elif isinstance(values := e.rows[f.name], list):
            texts = [None if v is None else v.encode() for v in values]
            lengths = [-1 if v is None else len(v) for v in texts]
            data = np.array(lengths, "<i8").tobytes() + b"".join(v for v in texts if v)
        else:
            data = values.tobytes()
        found.append(hashlib.sha256(data).digest())
    return found


# -- what is kept, in plain Python


def kept_after(kept: list[Episode], added: Sequence[Episode], policy: Mapping[str, Any]) -> list[Episode]:
    """The episodes that a policy keeps when others are added, in order."""
    for e in added:
        kept = [*kept, e]
        counted = [k for k in kept if not k.protected]
        if "steps" in policy:
            while sum(k.length for k in counted) > policy["steps"] and len(counted) > 1:
                counted = counted[1:]
        elif "newest" in policy:
            counted = counted[-policy["newest"] :]
        elif "top" in policy:
            best = sorted(counted, key=lambda k: (-k.total_reward, k.number))[: policy["top"]]
            counted = [k for k in counted if k in best]
        kept = [k for k in kept if k.protected or any(k is c for c in counted)]
    return kept
