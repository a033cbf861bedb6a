"""Episodes as plain NumPy arrays, what each change makes of a list of them, and what a dataset of them must hold."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from made_once import made_once
from PIL import Image
from reference import windows

import rlds_cli
from rlds_cli.base.files import publishing
from rlds_cli.base.ids import parse
from rlds_cli.dataset import Dataset
from rlds_cli.homes import Home
from rlds_cli.loader import Goals, Loader, ReturnToGo, Sequential, Shuffled, Slice, Transition
from rlds_cli.store import Description, Work, finish
from rlds_cli.ted import Chunk, EncodedFrames, EpisodeData, Field, Part, lay_out

SHAPE = (6, 8, 3)
FIELDS = (
    Field("action", "int8", (), "root"),
    Field("info/wide", "complex64", (512,), "root"),  # 4 KiB a row, and no statistics of each element
    Field("info/word", "str", (), "root", "text"),
    Field("next/info/bonus", "float32", (), "next"),
    Field("next/reward", "float64", (), "next"),
    Field("next/terminated", "bool", (), "next"),
    Field("next/truncated", "bool", (), "next"),
    Field("observation/cam", "uint8", SHAPE, "both", "frames", "jpeg"),
    Field("observation/large", "complex128", (256,), "both"),
    Field("observation/said", "str", (), "both", "text"),
    Field("observation/state", "float32", (3,), "both"),
    Field("wrist", "uint8", SHAPE, "root", "frames", "png"),
)
BOTH = tuple(f.name for f in FIELDS if f.placement == "both")
ENDS = ("terminated", "truncated", "cut")
SPLITS = ("train", "val")
WORDS = ("été", None, "", "a long word", "pick", "place")


def _image(number: int, codec: str) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, SHAPE, np.uint8)
    Image.fromarray(pixels).save(out, codec)
    return out.getvalue()


FILES = {codec: [_image(k, codec) for k in range(24)] for codec in ("jpeg", "png")}
PIXELS = {file: np.asarray(Image.open(io.BytesIO(file))) for files in FILES.values() for file in files}


@dataclass(eq=False)
class Episode:
    """One episode: ``rows`` by field, T+1 of a field placed ``both`` if the final observation is known, else T."""

    rows: dict[str, Any]
    end: str
    seed: int | None = None
    options: str | None = None
    splits: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    id: bytes | None = None  # None until it was seen once

    @property
    def length(self) -> int:
        return len(self.rows["action"])

    @property
    def observed(self) -> bool:
        return len(self.rows["observation/state"]) > self.length

    @property
    def transitions(self) -> int:
        return self.length - (not self.observed and self.end != "terminated")

    @property
    def total_reward(self) -> float:
        return float(self.rows["next/reward"].sum())

    def labelled(self, **about: Any) -> Episode:
        """The episode with other columns; None takes a value away."""
        return replace(self, about={n: v for n, v in (self.about | about).items() if v is not None})

    def part(self, first: int, stop: int) -> Episode:
        """Steps ``first`` to ``stop`` as an episode of its own."""
        if (first, stop) == (0, self.length):
            return self
        ends = stop == self.length
        rows = {n: v[first : stop + (n in BOTH)] for n, v in self.rows.items()}
        terminated = bool(rows["next/terminated"][-1])
        if not ends and not terminated:
            rows["next/truncated"] = rows["next/truncated"].copy()
            rows["next/truncated"][-1] = True
        end = self.end if ends else "terminated" if terminated else "cut"
        start = {} if first == 0 else {"seed": None, "options": None}
        return replace(self, rows=rows, end=end, id=None, **start)

    def returns(self) -> np.ndarray:
        """The sum of rewards from each step to the first one that terminates, or to the last one."""
        found, after = np.zeros(self.length), 0.0
        for t in reversed(range(self.length)):
            found[t] = after = float(self.rows["next/reward"][t]) + after * (not self.rows["next/terminated"][t])
        return found

    def item(self) -> dict[str, Any]:
        """The episode as `rlds_cli.create` takes it. It says ``cut`` by flags that are all False in the last step."""
        rows = dict(self.rows)
        if self.end == "cut":
            rows["next/truncated"] = np.zeros(self.length, bool)
        return {**rows, "episode": self.about}

    def plain(self) -> dict[str, Any]:
        """The episode as `reference.windows` takes it, with the vector alone as its observation."""
        r = self.rows
        flags = {n: r[f"next/{n}"] for n in ("terminated", "truncated")}
        return {
            "observation": r["observation/state"],
            "action": r["action"],
            "next": {"reward": r["next/reward"], **flags},
        }


def draw(rng: np.random.Generator, length: int, *, resets: bool = False) -> Episode:
    """An episode with values of all kinds: NaN, -0.0, texts with accents, empty ones and none."""
    end, observed = ENDS[rng.integers(3)], bool(rng.random() < 0.6)
    n = length + observed
    state = rng.standard_normal((n, 3)).astype(np.float32)
    state[rng.random((n, 3)) < 0.1] = np.nan
    state[rng.random((n, 3)) < 0.1] = -0.0
    last = np.arange(length) == length - 1
    terminated = (rng.random(length) < 0.15) & ~last | last & (end == "terminated")
    truncated = last & (end != "terminated" or bool(rng.random() < 0.2))
    rows = {
        "action": rng.integers(-128, 128, length).astype(np.int8),
        "info/wide": rng.standard_normal((length, 1024), np.float32).view(np.complex64),
        "info/word": [WORDS[k] for k in rng.integers(0, len(WORDS), length)],
        "next/info/bonus": rng.standard_normal(length).astype(np.float32),
        "next/reward": rng.integers(-50, 50, length) / 4,
        "next/terminated": terminated,
        "next/truncated": truncated,
        "observation/cam": [FILES["jpeg"][k] for k in rng.integers(0, 24, n)],
        "observation/large": rng.standard_normal((n, 512)).view(np.complex128),
        "observation/said": [WORDS[k] for k in rng.integers(0, len(WORDS), n)],
        "observation/state": state,
        "wrist": [FILES["png"][k] for k in rng.integers(0, 24, length)],
    }
    e = Episode(rows, end)
    if resets:
        e.seed = int(rng.integers(0, 1 << 63)) if rng.random() < 0.6 else None
        e.options = json.dumps({"level": int(rng.integers(9))}) if rng.random() < 0.4 else None
        e.splits = tuple(s for s in SPLITS if rng.random() < 0.4)
    if rng.random() < 0.5:
        e.about = {"task": ("press", "löse")[rng.integers(2)]}
    return e


# -- a dataset of such episodes


class _Job:
    """The episodes, with all that an archive may say of them and `create` may not."""

    key, stage, parts, schema = "model", "convert", (Part(None, {}),), FIELDS

    def __init__(self, id: str, episodes: Sequence[Episode]) -> None:
        self.id, self.episodes = id, episodes

    def read(self, part: Part) -> Iterator[Chunk]:
        yield lay_out(self.schema, [self._data(k, e) for k, e in enumerate(self.episodes)])

    def _data(self, k: int, e: Episode) -> EpisodeData:
        columns = {n: _frames(v) if _is_frames(v) else v for n, v in e.rows.items()}
        about = {"seed": e.seed, "options": e.options, "splits": e.splits, "extra": e.about}
        return EpisodeData(columns, e.length, ENDS.index(e.end), row=k, **about)

    def name(self, number: int) -> str:
        return "the part"


def _is_frames(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], bytes)


def _frames(files: list[bytes]) -> EncodedFrames:
    return EncodedFrames(np.frombuffer(b"".join(files), np.uint8), np.array([len(f) for f in files], np.int64))


def build(id: str, episodes: Sequence[Episode], storage: str = "memmap") -> Dataset:
    """Write episodes as a dataset of the home."""

    def make() -> Dataset:
        home = Path(os.environ["RLDS_HOME"])
        built = Work(_Job(id, episodes), home / "partial" / secrets.token_hex(4)).run(progress=lambda event: None)
        finish(built, Description(id, storage))
        publishing.publish(built.directory, Home(home).dataset(parse(id)))
        return rlds_cli.open_dataset(id)

    return made_once(id, make, *([e.rows, e.end, e.seed, e.options, e.splits, e.about] for e in episodes), storage)


# -- what a dataset must hold


def check(ds: Dataset, expected: Sequence[Episode]) -> None:
    """Compare the episodes of a dataset, with their columns, counts, ids and fingerprint, with a list of them."""
    e = ds.episodes
    assert len(e) == ds.num_episodes == len(expected)
    wanted: dict[str, list[Any]] = {
        "length": [x.length for x in expected],
        "end": [x.end for x in expected],
        "num_observed": [x.length + x.observed for x in expected],
        "num_transitions": [x.transitions for x in expected],
        "total_reward": [x.total_reward for x in expected],
        "num_done": [int((x.rows["next/terminated"] | x.rows["next/truncated"]).sum()) for x in expected],
        "num_terminated": [int(x.rows["next/terminated"].sum()) for x in expected],
    }
    for name, values in wanted.items():
        assert e[name].tolist() == values, name
    _check_resets(ds, expected)
    _check_about(ds, expected)
    _check_ids(ds, expected)
    assert len(ds) == sum(x.transitions for x in expected)
    for k, x in enumerate(expected):
        _check_values(ds, k, x)
    assert ds.fingerprint == fingerprint(expected)
    _check_stats(ds, expected)


def _check_resets(ds: Dataset, expected: Sequence[Episode]) -> None:
    e = ds.episodes
    if any(x.seed is not None for x in expected) or "seed" in e:
        assert e["has_seed"].tolist() == [x.seed is not None for x in expected]
        assert e["seed"].tolist() == [x.seed or 0 for x in expected]
    assert e["options"].tolist() == [x.options or "" for x in expected]
    for split in SPLITS:
        found = e[split].tolist() if split in e.splits else [False] * len(expected)
        assert found == [split in x.splits for x in expected]


def _check_about(ds: Dataset, expected: Sequence[Episode]) -> None:
    names = {n for x in expected for n in x.about}
    assert names <= set(ds.store.own_columns)
    for name in ds.store.own_columns:
        scalars = ds.store.own_column(name).scalars()
        found = [scalars[k] for k in ds.episodes.index.tolist()]
        assert found == [x.about.get(name) for x in expected], name


def _check_ids(ds: Dataset, expected: Sequence[Episode]) -> None:
    ids = [row.tobytes() for row in ds.episodes["id"]]
    assert len(set(ids)) == len(ids)
    for x, id in zip(expected, ids, strict=True):
        assert x.id in (None, id)
        x.id = id


def _check_values(ds: Dataset, k: int, x: Episode) -> None:
    batch = ds.episode(k)
    for f in FIELDS:
        where = f"{f.name} of episode {k}"
        assert_equal(_unit(batch[f.name], f), value(f, x.rows[f.name][: x.length]), where)
        if f.placement == "both":
            after = x.rows[f.name][1:] if x.observed else [*x.rows[f.name][1:], x.rows[f.name][-1]]
            assert_equal(batch[f"next/{f.name}"], value(f, after), f"next/{where}")


def _unit(values: np.ndarray, f: Field) -> np.ndarray:
    """Without the axis of one element that scalar floats and flags have."""
    return values.reshape(values.shape[:1]) if f.kind == "array" and f.shape == () else values


def value(f: Field, rows: Any) -> np.ndarray:
    """Rows of a field as arrays: frames decoded, texts as objects."""
    if f.kind == "frames":
        return np.stack([PIXELS[r] for r in rows]) if len(rows) else np.zeros((0, *f.shape), np.uint8)
    return np.array(list(rows), object) if f.kind == "text" else np.asarray(rows, f.dtype)


def assert_equal(got: Any, wanted: Any, what: str) -> None:
    """Equal bit for bit, NaN and -0.0 as well."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, f"{what}: {got.dtype} {got.shape}"
    same = got.tolist() == wanted.tolist() if got.dtype == object else got.tobytes() == wanted.tobytes()
    assert same, what


def _check_stats(ds: Dataset, expected: Sequence[Episode]) -> None:
    if expected:
        rewards = np.concatenate([x.rows["next/reward"] for x in expected])
        s = ds.stats["next/reward"]
        assert np.allclose([s.mean, s.min, s.max], [rewards.mean(), rewards.min(), rewards.max()])


def check_batches(ds: Dataset, expected: Sequence[Episode], seed: int) -> None:
    """One epoch of transitions with every field, returns and goals; slices; and sums of several rewards."""
    if not sum(x.transitions for x in expected):
        return
    _check_transitions(ds, expected, seed)
    plain = [x.plain() for x in expected]
    for window in (Transition(n_step=3, gamma=0.5), Slice(3, before=1, after=2)):
        made = [
            windows.steps_of(e, 3, 0.5) if isinstance(window, Transition) else windows.slices(e, 3, before=1, after=2)
            for e in plain
        ]
        _check_windows(ds, window, [(k, w) for k, of in enumerate(made) for w in of])


def _check_transitions(ds: Dataset, expected: Sequence[Episode], seed: int) -> None:
    goals = Goals("goal", future=1.0, horizon="uniform", of="observation/state")
    fields = ["all", "step", "episode", ReturnToGo(), goals]
    how: dict[str, Any] = {"backend": "numpy", "dtype": None, "seed": seed, "fields": fields}
    seen = []
    returns = [x.returns() for x in expected]
    for batch in Loader(ds, min(len(ds), 16), sampler=Shuffled(), **how):
        for i, (k, t) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
            x = expected[k]
            seen.append((k, t))
            for f in FIELDS:
                assert_equal(_unit(batch[f.name][i : i + 1], f), value(f, x.rows[f.name][t : t + 1]), f.name)
                if f.placement == "both" and t + 1 < len(x.rows[f.name]):
                    after = value(f, x.rows[f.name][t + 1 : t + 2])
                    assert_equal(batch[f"next/{f.name}"][i : i + 1], after, f"next/{f.name}")
            assert batch["return_to_go"][i, 0] == returns[k][t]
            ahead = (
                x.rows["observation/state"][t + 1 :]
                if t + 1 < x.length + x.observed
                else x.rows["observation/state"][t:]
            )
            assert batch["goal"][i].tobytes() in {row.tobytes() for row in ahead}
    assert sorted(seen) == [(k, t) for k, x in enumerate(expected) for t in range(x.transitions)]


def _check_windows(ds: Dataset, window: Any, wanted: list[tuple[int, windows.Window]]) -> None:
    if not wanted:
        return
    names = ("observation/state", "action", "next/observation/state", "next/reward", "next/terminated", "next/done")
    how: dict[str, Any] = {"backend": "numpy", "dtype": None, "fields": [*names, "episode", "step"]}
    left = iter(wanted)
    for batch in Loader(ds, min(len(wanted), 16), window=window, sampler=Sequential(), **how):
        for i in range(len(batch["episode"])):
            k, w = next(left)
            assert np.unique(batch["episode"][i]).tolist() == [k]
            for name in names:
                assert_equal(batch[name][i], w.fields[name.replace("observation/state", "observation")], name)
    assert next(left, None) is None


# -- the fingerprint, from the words of docs/reference/fingerprint.md alone


def fingerprint(episodes: Sequence[Episode]) -> str:
    h = hashlib.sha256()
    for f in sorted(FIELDS, key=lambda f: f.name):
        head = [f.name, f.dtype, list(f.shape), f.placement, f.kind, f.codec]
        h.update(_hash(head, b"".join(_digest(f, e.rows[f.name]) for e in episodes)))
    columns = {
        "length": np.array([e.length for e in episodes], "<i8"),
        "end": np.array([ENDS.index(e.end) for e in episodes], "u1"),
        "num_observed": np.array([e.length + e.observed for e in episodes], "<i8"),
    }
    if any(e.seed is not None for e in episodes):
        columns["seed"] = np.array([e.seed or 0 for e in episodes], "<u8")
        columns["has_seed"] = np.array([e.seed is not None for e in episodes])
    columns |= {
        f"split/{s}": np.array([s in e.splits for e in episodes])
        for s in SPLITS
        if any(s in e.splits for e in episodes)
    }
    found = {n: _hash([n, v.dtype.name, [], "episode", "array", None], v.tobytes()) for n, v in columns.items()}
    if any(e.options for e in episodes):
        found["options"] = _text_column("options", [e.options for e in episodes])
    for name in {n for e in episodes for n in e.about}:
        found[name] = _about_column(name, [e.about.get(name) for e in episodes])
    for name in sorted(found):
        h.update(found[name])
    return f"rlds1:{h.hexdigest()}"


def _hash(head: list[Any], content: bytes) -> bytes:
    return hashlib.sha256(json.dumps(head, separators=(",", ":")).encode() + b"\n" + content).digest()


def _texts(values: Sequence[str | None]) -> bytes:
    encoded = [None if v is None else v.encode() for v in values]
    return np.array([-1 if v is None else len(v) for v in encoded], "<i8").tobytes() + b"".join(v for v in encoded if v)


def _text_column(name: str, values: Sequence[str | None]) -> bytes:
    return _hash([name, "str", [], "episode", "text", None], hashlib.sha256(_texts(values)).digest())


def _about_column(name: str, values: Sequence[Any]) -> bytes:
    kinds, missing = {type(v) for v in values if v is not None}, [v is None for v in values]
    if kinds == {str}:
        return _text_column(name, values)
    most = max(v for v in values if v is not None)
    dtype = "?" if kinds == {bool} else "<f8" if float in kinds else "<u8" if most > (1 << 63) - 1 else "<i8"
    data = np.array([(np.nan if float in kinds else 0) if v is None else v for v in values], dtype)
    return _hash(
        [name, data.dtype.name, [], "episode", "array", None],
        data.tobytes() + (bytes(missing) if any(missing) else b""),
    )


def _digest(f: Field, rows: Any) -> bytes:
    """Of the rows of an episode that count; of the hashes of large rows and encoded frames."""
    if f.kind == "text":
        return hashlib.sha256(_texts(rows)).digest()
    if f.kind == "frames":
        return hashlib.sha256(b"".join(hashlib.sha256(r).digest() for r in rows)).digest()
    if rows.nbytes >= 4096 * max(1, len(rows)) and len(rows):
        return hashlib.sha256(b"".join(hashlib.sha256(r.tobytes()).digest() for r in rows)).digest()
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).digest()
