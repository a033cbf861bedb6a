"""What is computed for the sample: n-step returns, returns to go, goals. And two loaders at once."""

from __future__ import annotations

from threading import Thread

from loader import data
from loader.cases import Builders, Call, Case, Group, Row, batches

SIZE, SIDE_BY_SIDE = 256, 2000


def rlds() -> Builders:
    from rlds_cli.loader import Transition

    ds = data.halfcheetah()

    def to_go() -> Case:
        from rlds_cli.loader import ReturnToGo

        return Case(batches(ds, SIZE, fields=[..., ReturnToGo()]))

    def goals(count: int) -> Case:
        from rlds_cli.loader import Goals

        both = [Goals("a"), Goals("b", horizon="uniform")]
        return Case(batches(ds, SIZE, fields=[..., *both[:count]]))

    def some(call: Call) -> None:
        for _ in range(SIDE_BY_SIDE):
            call()

    def loaders(count: int) -> Case:
        calls = [batches(ds, SIZE, seed=seed) for seed in range(count)]

        def all_of_them() -> None:
            threads = [Thread(target=some, args=(call,)) for call in calls]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        return Case(all_of_them)

    return {
        "transitions": lambda: Case(batches(ds, SIZE)),
        "n-step 3": lambda: Case(batches(ds, SIZE, window=Transition(3))),
        "return to go": to_go,
        "a goal": lambda: goals(1),
        "two goals": lambda: goals(2),
        "2,000 batches in a thread": lambda: loaders(1),
        "2,000 batches in each of two": lambda: loaders(2),
    }


PLAIN, TWICE = "rlds: transitions", "rlds: 2,000 batches in"
GROUP = Group(
    "batches of 256 transitions, with computed columns",
    {"rlds": rlds},
    (
        Row("n-step 3", "rlds: n-step 3", PLAIN, 1.3, "at most"),
        Row("with ReturnToGo", "rlds: return to go", PLAIN, 1.3, "at most"),
        Row("with Goals", "rlds: a goal", PLAIN, 1.4, "at most"),
        Row("with two Goals", "rlds: two goals", PLAIN, 2.5, "at most"),
        Row("two loaders in threads", f"{TWICE} each of two", f"{TWICE} a thread", 1.2, "at most"),
    ),
)
