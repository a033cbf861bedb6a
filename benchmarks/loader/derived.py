"""What is computed for the sample: n-step returns, returns to go, goals."""

from __future__ import annotations

from loader import data
from loader.cases import Builders, Case, Group, Row, batches

SIZE = 256


def rlds() -> Builders:
    from rlds_cli.loader import Transition

    ds = data.halfcheetah()

    def to_go() -> Case:
        from rlds_cli.loader import ReturnToGo

        return Case(batches(ds, SIZE, fields=[..., ReturnToGo()]))

    def goals() -> Case:
        from rlds_cli.loader import Goals

        return Case(batches(ds, SIZE, fields=[..., Goals("a"), Goals("b", horizon="uniform")]))

    return {
        "transitions": lambda: Case(batches(ds, SIZE)),
        "n-step 3": lambda: Case(batches(ds, SIZE, window=Transition(3))),
        "return to go": to_go,
        "two goals": goals,
    }


PLAIN = "rlds: transitions"
GROUP = Group(
    "batches of 256 transitions, with computed columns",
    {"rlds": rlds},
    (
        Row("n-step 3", "rlds: n-step 3", PLAIN, 1.5, "at most"),
        Row("with ReturnToGo", "rlds: return to go", PLAIN, 1.3, "at most"),
        Row("with two Goals", "rlds: two goals", PLAIN, 2.5, "at most"),
    ),
)
