"""Which windows a sampler draws, or how likely each is; ``counts`` says how many windows each episode has."""

from __future__ import annotations

from collections.abc import Sequence

from reference import shuffles

WINDOW, EPISODE = 0, 1  # streams of Philox

Chances = list[list[float]]  # of every window, by episode


def numbered(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Episode and number there of every window, in the order of the dataset."""
    return [(k, number) for k, count in enumerate(counts) for number in range(count)]


# -- sequences


def sequential(counts: Sequence[int]) -> list[tuple[int, int]]:
    """An epoch in the order of the dataset."""
    return numbered(counts)


def shuffled(counts: Sequence[int], seed: int, epoch: int) -> list[tuple[int, int]]:
    """An epoch of a shuffle."""
    windows = numbered(counts)
    return [windows[i] for i in shuffles.shuffled(seed, epoch, len(windows))]


def uniform(counts: Sequence[int], seed: int, epoch: int, samples: int) -> list[tuple[int, int]]:
    """Draws with replacement, every window as likely."""
    windows = numbered(counts)
    return [windows[int(unit(seed, epoch, WINDOW, p, len(windows)))] for p in range(samples)]


def uniform_by_episode(counts: Sequence[int], seed: int, epoch: int, samples: int) -> list[tuple[int, int]]:
    """Draws of an episode, then of one of its windows."""
    some = [k for k, count in enumerate(counts) if count]
    drawn = []
    for p in range(samples):
        k = some[int(unit(seed, epoch, EPISODE, p, len(some)))]
        drawn.append((k, int(unit(seed, epoch, WINDOW, p) * counts[k])))
    return drawn


def unit(seed: int, epoch: int, stream: int, position: int, scale: float = 1.0) -> float:
    """A number in [0, scale) of 53 random bits."""
    return (shuffles.philox(seed, epoch, stream, position) >> 11) * (scale * 2.0**-53)


# -- chances


def evenly(counts: Sequence[int]) -> Chances:
    """Every window as likely."""
    return [[1 / sum(counts)] * count for count in counts]


def evenly_by_episode(counts: Sequence[int], weights: Sequence[float] | None = None) -> Chances:
    """Every episode that has a window as likely, or by weights; then every window in it."""
    given = [1.0] * len(counts) if weights is None else weights
    usable = [w if count else 0.0 for w, count in zip(given, counts, strict=True)]
    return [[w / sum(usable) / max(count, 1)] * count for w, count in zip(usable, counts, strict=True)]


def by_anchor(anchors: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> Chances:
    """By the weight of each window's anchor step; ``weights`` of the steps of each episode."""
    mass = [[float(w[t]) for t in of_one] for of_one, w in zip(anchors, weights, strict=True)]
    total = sum(map(sum, mass))
    return [[m / total for m in of_one] for of_one in mass]


def by_priority(priorities: Sequence[Sequence[float]], alpha: float, eps: float) -> Chances:
    """Prioritised draws: in proportion to (priority + eps)**alpha."""
    mass = [[(p + eps) ** alpha for p in of_one] for of_one in priorities]
    total = sum(map(sum, mass))
    return [[m / total for m in of_one] for of_one in mass]


def importance(chances: Chances, beta: float) -> list[list[float]]:
    """Weights (N * P)**-beta of prioritised draws, the largest of them all 1."""
    N = sum(map(len, chances))
    raw = [[(N * p) ** -beta for p in of_one] for of_one in chances]
    return [[w / max(max(x, default=0.0) for x in raw) for w in of_one] for of_one in raw]


# -- pairs

Window = tuple[int, int]  # episode, number there


def pairs(counts: Sequence[int], tasks: Sequence[object]) -> dict[tuple[Window, Window], float]:
    """The chance of every pair: a task as often as it has windows, and in it every pair of two episodes alike.

    A task of one episode has pairs of different windows of it; episodes whose task is None have none.
    """
    of_task: dict[object, list[tuple[Window, Window]]] = {}
    for task in dict.fromkeys(t for t in tasks if t is not None):
        mine = [k for k, t in enumerate(tasks) if t == task and counts[k]]
        windows = [(k, number) for k in mine for number in range(counts[k])]
        found = [(a, b) for a in windows for b in windows if (a[0] != b[0] if len(mine) > 1 else a != b)]
        if found:
            of_task[task] = found
    sizes = {task: len({a for a, _ in found}) for task, found in of_task.items()}
    return {pair: sizes[task] / sum(sizes.values()) / len(found) for task, found in of_task.items() for pair in found}
