"""How far annotators agree: Cohen's kappa of each label, what they disagree on, and what reviews of others say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from rlds_cli.dataset.decisions.decision import Decision
from rlds_cli.dataset.decisions.planning import CUT, is_same
from rlds_cli.ted import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """An episode of which two annotators say different things, ``a`` and ``b``; ``id`` is its id."""

    id: str
    a: Scalar
    b: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAgreement:
    """What two annotators ``a`` and ``b`` say about one thing, where both have said something.

    Attributes
    ----------
    about : str
        A label, or ``do``: whether an episode is dropped or kept.
    a, b : str
        The annotators, in the order of the alphabet.
    episodes, agreed : int
    kappa : float, optional
        See `kappa`.
    disagreements : tuple of Disagreement
    """

    about: str
    a: str
    b: str
    episodes: int
    agreed: int
    kappa: float | None
    disagreements: tuple[Disagreement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """What annotator ``by`` says of the decisions of another one, ``of``, that ``by`` has looked at.

    ``confirmed`` and ``contradicted`` count labels and drops, or what else they say.
    """

    by: str
    of: str
    confirmed: int
    contradicted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How far annotators agree who have decided by themselves, and what reviews say."""

    labels: tuple[LabelAgreement, ...]
    reviews: tuple[Reviewed, ...]


def kappa(pairs: Sequence[tuple[Scalar, Scalar]]) -> float | None:
    """Return Cohen's kappa of what two annotators say, a pair for each episode; None where it is not defined.

    ``(p_o - p_e) / (1 - p_e)``, where ``p_o`` is the share of pairs that agree, and ``p_e`` the share that would agree
    if each annotator drew at random, by the shares of the own values: the sum over values of the product of the two
    shares. 1 is full agreement, 0 as much as by chance. It is not defined without pairs, or where both always say one
    and the same value.

    Jacob Cohen: A coefficient of agreement for nominal scales. Educational and Psychological Measurement 20 (1960),
    37-46.
    """
    n = len(pairs)
    one, other = (Counter(_category(pair[k]) for pair in pairs) for k in (0, 1))
    agreed = sum(is_same(a, b) for a, b in pairs)
    by_chance = sum(count * other[value] for value, count in one.items())
    if n * n == by_chance:
        return None
    return (agreed * n - by_chance) / (n * n - by_chance)


def _category(value: Scalar) -> tuple[bool, Scalar]:
    """Return what values have in common that are one, see `is_same`."""
    return isinstance(value, bool), value


def agreement(decisions: Sequence[Decision]) -> Agreement:
    """Compare the last decisions of annotators on the same episodes. Reviews count apart: they saw those of others."""
    keys = {d.key: d for d in decisions} if any(d.reviews for d in decisions) else {}
    said: dict[str, dict[str, dict[str, Scalar]]] = {}  # about, annotator, episode
    reviews = dict[tuple[str, str], list[bool]]()
    for d in decisions:
        seen = keys.get(d.reviews)
        if seen is None:
            for about, value in _said(d).items():
                said.setdefault(about, {}).setdefault(d.by, {})[d.id] = value
        else:
            one, other = _said(seen), _said(d)
            common = one.keys() & other.keys()
            reviews.setdefault((d.by, seen.by), []).extend(is_same(one[about], other[about]) for about in common)
    labels = tuple(
        _of_pair(about, a, b, by[a], by[b])
        for about, by in sorted(said.items())
        for a, b in combinations(sorted(by), 2)
        if by[a].keys() & by[b].keys()
    )
    counted = (
        Reviewed(by=by, of=of, confirmed=sum(s), contradicted=len(s) - sum(s)) for (by, of), s in reviews.items()
    )
    return Agreement(labels=labels, reviews=tuple(counted))


def _said(d: Decision) -> dict[str, Scalar]:
    return {**d.labels, **({CUT: d.do} if d.do in ("drop", "keep") else {})}


def _of_pair(about: str, a: str, b: str, one: dict[str, Scalar], other: dict[str, Scalar]) -> LabelAgreement:
    both = [id for id in one if id in other]
    apart = tuple(Disagreement(id=k, a=one[k], b=other[k]) for k in both if not is_same(one[k], other[k]))
    return LabelAgreement(
        about=about,
        a=a,
        b=b,
        episodes=len(both),
        agreed=len(both) - len(apart),
        kappa=kappa([(one[k], other[k]) for k in both]),
        disagreements=apart,
    )
