from __future__ import annotations

import numpy as np
import pytest

import rlds_cli
from rlds_cli import preprocess

STEPS = 40


@pytest.fixture
def ds():
    rng = np.random.default_rng(0)
    return rlds_cli.create(
        "local/ds",
        (
            {
                "observation": rng.standard_normal((STEPS + 1, 3)),
                "action": rng.standard_normal((STEPS, 2)),
                "next": {"reward": rng.standard_normal(STEPS), "truncated": True},
            }
            for _ in range(2)
        ),
    )


def steps_of(ds, name):
    """The rows of a field that belong to steps, episode by episode."""
    return [ds.column(name)[s : s + STEPS] for s in ds.episodes["start"]]


class Held:
    """Adds to each action that of the step before as it was given, however it came back."""

    def __init__(self):
        self.before = np.zeros(2)

    def __call__(self, step):
        action = step["action"]
        step["action"] = action + self.before
        self.before = action
        return step


def test_what_a_function_holds_of_a_step_before_does_not_change(ds):
    made = preprocess.run(ds, Held(), "held", unit="step", jobs=0)
    given = np.concatenate(steps_of(ds, "action"))
    before = np.concatenate([np.zeros((1, 2)), given[:-1]])
    before[0] = np.concatenate(steps_of(made, "action"))[0] - given[0]  # what it held of the steps it was tried on
    assert np.array_equal(np.concatenate(steps_of(made, "action")), given + before)


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 1, 39])
def test_a_field_that_changes_from_some_step_on(ds, first):
    counts = iter(range(10**6))

    def late(step):
        n = next(counts) % STEPS
        if n < first:
            return step
        if n % 3 == 0:
            step["action"] *= 2  # in place
        elif n % 3 == 1:
            step["action"] = step["action"] * 2
        return step

    made = preprocess.run(ds, late, "late", unit="step", jobs=0)
    doubled = (np.arange(STEPS) >= first) & (np.arange(STEPS) % 3 < 2)
    for was, now in zip(steps_of(ds, "action"), steps_of(made, "action"), strict=True):
        assert np.array_equal(now, np.where(doubled[:, None], 2 * was, was))


@pytest.mark.thorough
def test_one_buffer_again_and_again(ds):
    buffer = np.zeros(2)

    def fill(step):
        buffer[:] = step["action"] + 1
        return {**step, "action": buffer}

    made = preprocess.run(ds, fill, "fill", unit="step", jobs=0)
    for was, now in zip(steps_of(ds, "action"), steps_of(made, "action"), strict=True):
        assert np.array_equal(now, was + 1)


NAMES = ["it's", 'say "so"', "{x}", "x0", "call", "é"]


@pytest.mark.thorough
def test_names_of_fields_are_literals_in_the_loop(home):
    """The loop over steps is written for the fields that there are, whatever they are called."""
    fields = {n: np.random.default_rng(k).standard_normal(STEPS + 1) for k, n in enumerate(NAMES)}
    named = rlds_cli.create(
        "local/named", [{"observation": fields, "action": np.zeros(STEPS), "next": {"truncated": True}}]
    )

    def f(step):
        for part in (step, step["next"]):
            part["observation"]["it's"] = part["observation"]["it's"] * 2
        return step

    made = preprocess.run(named, f, "named", unit="step", jobs=0)
    for name, values in fields.items():
        assert np.array_equal(made.column(f"observation/{name}"), values * (2 if name == "it's" else 1))


def test_the_dtypes_of_one_block_do_not_bind_the_next(ds):
    """Fields are expected as the block before had them; the first row of each block decides."""
    counts = iter(range(10**6))

    def f(step):
        kind = np.float32 if next(counts) // 7 % 2 else np.float64
        step["action"] = step["action"].astype(kind) + 1
        return step

    made = preprocess.run(ds, f, "kinds", unit="step", jobs=0)
    for was, now in zip(steps_of(ds, "action"), steps_of(made, "action"), strict=True):
        assert now.dtype == np.float64 and np.allclose(now, was + 1, rtol=1e-6)
