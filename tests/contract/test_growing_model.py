"""Any order of adding, committing, closing, refreshing: each version that a reader holds stays what was written."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
from growing_model import ENDS, FIELDS, Episode, check, draw, kept_after
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import rlds_cli
from rlds_cli import Fifo, Top
from rlds_cli.dataset import Dataset
from rlds_cli.keep import compacting
from rlds_cli.make.convert import writer as writers
from rlds_cli.store import Keep
from rlds_cli.store.growing import segments

POLICIES: dict[str, tuple[Keep | None, dict[str, Any]]] = {
    "everything": (None, {}),
    "steps": (Fifo(steps=2500), {"steps": 2500}),
    "newest": (Fifo(episodes=3), {"newest": 3}),
    "top": (Top(episodes=3), {"top": 3}),
}
LENGTHS = st.sampled_from([1, 2, 3, 17, 60, 1200, 5000])


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Any:
    """Segments of 4,096 rows, and no commit that was not asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "rows_of_segment", lambda width, most=None: 4096)
        patch.setattr(writers, "_INTERVAL", 1e6)
        patch.setattr(writers, "_MOST_BYTES", 1 << 40)
        yield


class Growing(RuleBasedStateMachine):
    """A writer with two environments, and readers at several versions."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.rng = np.random.default_rng(0)
        self.kept: list[Episode] = []  # as of the last commit
        self.waiting: list[Episode] = []
        self.open: list[tuple[Episode, int] | None] = [None, None]  # whole episode, steps so far
        self.shown: list[Episode | None] = [None, None]  # open ones as they were committed
        self.readers: list[tuple[Dataset, list[Episode]]] = []
        self.ended: list[int] = []  # environments of which an episode ended since the last commit
        self.count = 0

    @initialize(policy=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 1 << 30))
    def begin(self, policy: str, seed: int) -> None:
        self.keep, self.policy = POLICIES[policy]
        self.rng = np.random.default_rng(seed)
        self.writer = self.opened()

    def opened(self) -> Any:
        return rlds_cli.writer(
            "local/run", fields=FIELDS, keep=self.keep, home=self.directory.name, durable=False, envs=2
        )

    def drawn(self, length: int, end: str, observed: bool, protected: bool) -> Episode:
        e = draw(self.rng, length, end=end, observed=observed)
        e.protected = protected and "top" in self.policy
        return e

    @rule(lengths=st.lists(LENGTHS, min_size=1, max_size=3), end=st.sampled_from(ENDS), data=st.data())
    def add_episodes(self, lengths: list[int], end: str, data: st.DataObject) -> None:
        protected = data.draw(st.booleans())
        episodes = [self.drawn(n, end, data.draw(st.booleans()), protected) for n in lengths]
        assert self.writer.add_episodes((e.item() for e in episodes), protected=episodes[0].protected) == len(lengths)
        self.waiting += episodes

    @rule(length=st.integers(1, 12), observed=st.booleans(), env=st.integers(0, 1), end=st.sampled_from(ENDS[:2]))
    def step(self, length: int, observed: bool, env: int, end: str) -> None:
        """One step of one of the environments, which may end its episode."""
        if self.open[env] is None:
            self.open[env] = self.drawn(length, end, True, False), 0
        e, t = self.open[env] or (None, 0)
        assert e is not None
        last = t + 1 == e.length
        step = e.step(t)
        rows = {k: self.stacked(v, env) for k, v in step.items() if k not in ("episode", "protected")}
        if last and not observed:
            rows["next_observation"] = None
            e.rows |= {n: v[:-1] for n, v in e.rows.items() if n.startswith("observation/")}
        flags = {"terminated": last and e.end == "terminated", "truncated": last and e.end == "truncated"}
        mask = np.arange(2) == env
        self.writer.add(**rows, **{n: mask & f for n, f in flags.items()}, episode=step["episode"], mask=mask)
        self.open[env] = None if last else (e, t + 1)
        if last:
            self.waiting.append(e)
            self.ended.append(env)

    @staticmethod
    def stacked(value: Any, env: int) -> Any:
        """The value for one environment, and nonsense for the other."""
        if value is None:
            return None
        if isinstance(value, dict):
            return {k: Growing.stacked(v, env) for k, v in value.items()}
        if isinstance(value, str):
            return [value, value]
        return np.stack([value, np.zeros_like(value)][:: 1 if env == 0 else -1])

    @rule()
    def commit(self) -> None:
        self.writer.commit()
        self.committed()

    def committed(self, *, closed: bool = False) -> None:
        replaced = [self.shown[env] for env in self.ended]
        now: list[Episode | None] = list(self.shown)
        for env in self.ended:
            now[env] = None
        opened = []
        for env, going in enumerate(self.open):
            if going is not None and (now[env] is None or now[env].length != going[1]):  # type: ignore[union-attr]
                replaced.append(now[env])
                now[env] = going[0].first(going[1])
                opened.append(now[env])
        self.kept = [k for k in self.kept if not any(k is r for r in replaced)]
        for e in [*self.waiting, *opened]:
            assert e is not None
            e.number, self.count = self.count, self.count + 1
        shown = [n for n in now if n is not None]
        outside = [k for k in self.kept if any(k is s for s in shown)] + [e for e in opened if e is not None]
        counted = [k for k in self.kept if not any(k is o for o in outside)]
        if closed:  # open episodes end here, and those that were not shown yet come under the policy
            outside = [o for o in outside if not any(o is e for e in opened)]
            self.waiting += [e for e in opened if e is not None]
        after = kept_after(counted, self.waiting, self.policy)
        self.kept = sorted([*after, *outside], key=lambda e: e.number)
        self.waiting, self.shown, self.ended = [], now, []

    @rule()
    def close_and_go_on(self) -> None:
        self.writer.close()
        self.committed(closed=True)
        self.open, self.shown = [None, None], [None, None]  # what was open counts when the next one is added
        self.writer = self.opened()

    @rule()
    def compact(self) -> None:
        self.writer.close()
        self.committed(closed=True)
        self.open, self.shown = [None, None], [None, None]
        compacting.compact("local/run", home=self.directory.name)
        check(self.writer.dataset(), self.kept)
        self.writer = self.opened()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def refresh(self, data: st.DataObject) -> None:
        k = data.draw(st.integers(0, len(self.readers) - 1))
        self.readers[k] = self.readers[k][0].refresh(), list(self.kept)

    @precondition(lambda self: len(self.readers) < 4)
    @rule()
    def read(self) -> None:
        self.readers.append((self.writer.dataset(), list(self.kept)))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def open_again(self, data: st.DataObject) -> None:
        """A version that somebody holds can be opened by its number."""
        ds, episodes = self.readers[data.draw(st.integers(0, len(self.readers) - 1))]
        check(rlds_cli.open_dataset(f"{ds.path}#v{ds.version}"), episodes)

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        del self.readers[data.draw(st.integers(0, len(self.readers) - 1))]

    @rule()
    def look(self) -> None:
        for ds, episodes in self.readers:
            check(ds, episodes, fingerprint=False)

    def teardown(self) -> None:
        self.look()
        self.readers.clear()
        if hasattr(self, "writer"):
            self.writer.close()
            self.committed(closed=True)
            check(self.writer.dataset(), self.kept)
        self.directory.cleanup()


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(max_examples=6, stateful_step_count=20)


@pytest.mark.slow
class TestGrowingLonger(Growing.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=150, stateful_step_count=50)
