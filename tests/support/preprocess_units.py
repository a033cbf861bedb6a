"""A function of each unit, with what `reference.units` makes of the source's arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import preprocess_functions as functions
from reference import units

ROWS = 600  # of a chunk: eight of them
LENGTHS = [60 + i % 41 for i in range(60)]
GAMMA = 0.9


def episodes():
    """Observations, actions, rewards, text; ended by turns, and one in four without a final observation."""
    rng = np.random.default_rng(0)
    for i, t in enumerate(LENGTHS):
        yield {
            "observation": rng.standard_normal((t + (i % 4 != 3), 3)).astype(np.float32),
            "action": rng.standard_normal((t, 2)).astype(np.float32),
            "next": {"reward": rng.standard_normal(t), "terminated": i % 3 == 0, "truncated": i % 3 == 1},
            "info": {"number": np.full(t, i), "word": [f"w{i % 5}" if k % 4 else None for k in range(t)]},
        }


def whole(episode, gamma):
    """Of unit episode: the discounted sum of what is to come, and its mean in words."""
    reward = episode["next"]["reward"]
    to_go = np.empty(len(reward))
    total = 0.0
    for t in reversed(range(len(reward))):
        to_go[t] = total = reward[t] + gamma * total
    return {**episode, "to_go": to_go, "mood": ["good" if x > 0 else "bad" for x in to_go]}


def long_halves(episode):
    """Of unit episode: those under 80 steps go, the others come back as two."""
    return functions.halves(episode) if len(episode["action"]) >= 80 else None


SOURCE = list(episodes())


@dataclass(frozen=True)
class Case:
    """A function, how it is run, and what it makes of an episode: the fields that are other than in the source."""

    fn: Any
    truth: Callable[[dict], dict]
    how: dict = field(default_factory=dict)
    rtol: float = 0.0  # 0 where NumPy does the very same


CASES = {
    "episode": Case(whole, lambda e: units.returns_in_words(e, GAMMA), {"args": {"gamma": GAMMA}}, 1e-12),
    "batch": Case(functions.normalise_batch, lambda e: units.normalised(e, functions.MEAN, functions.STD)),
    "step": Case(functions.normalise_step, lambda e: units.normalised(e, functions.MEAN, functions.STD)),
    "window": Case(functions.smooth, lambda e: units.smoothed(e, 2, 1), rtol=1e-5),
    "two passes": Case(functions.standardise, lambda e: units.standardised(e, SOURCE), rtol=1e-9),
    "split": Case(long_halves, lambda e: {}),
}


def expected(case):
    """The episodes that the result has, as NumPy makes them; fields by name."""
    for e in episodes():
        flat = {**{n: v for n, v in e.items() if n not in ("info", "next")}, **case.truth(e)}
        flat |= {"info/number": e["info"]["number"], "info/word": np.array(e["info"]["word"], object)}
        flat["next/reward"] = e["next"]["reward"]
        t = len(e["action"])
        if case.fn is not long_halves:
            yield flat
        elif t >= 80:
            yield from units.halves(flat, t)


def check(made, case):
    """The dataset is what NumPy makes of the source, row by row."""
    truth = list(expected(case))
    assert made.num_episodes == len(truth)
    for k, e in enumerate(truth):
        start, t = int(made.episodes["start"][k]), len(e["action"])
        for name, values in e.items():
            rows = made.gather(name, np.arange(start, start + len(values)))
            assert made.episodes["length"][k] == t
            if values.dtype == object:
                assert rows.tolist() == values.tolist()
            else:
                np.testing.assert_allclose(rows, values, rtol=case.rtol, atol=case.rtol)


def files(ds):
    """All bytes of a dataset but those of its manifest, which holds times."""
    paths = (p for p in sorted(ds.path.rglob("*")) if p.is_file() and p.parent != ds.path)
    return {str(p.relative_to(ds.path)): p.read_bytes() for p in paths}


def content(ds):
    """What must be the same whoever made a dataset: files, fingerprint, fields, what is shared, the state."""
    m = ds.manifest
    states = [step.get("state", {}).get("sha256") for step in m.provenance]
    return files(ds), ds.fingerprint, m.fields, dict(m.shared), dict(m.stats), states
