"""Which episodes and steps were left out by measures, and why: the account in a manifest and in a lock file.

::

    {"drop": ["idle"],                                  or "trim": "idle", or "where": "quality_jerk < 2"
     "measures": {"quality_idle_share": 1},             names and versions; of one's own functions hashes of code
     "findings": [{"code": "idle", "measure": "quality_idle_share",
                   "episodes": [4, 9],                  numbers in the dataset that it was selected from
                   "ranges": [[4, 1, 25], [9, 1, 20]],  episode, first, stop
                   "siblings": {"median": 0.0, ...}}]}  what was usual, and the limits

The account makes nothing: episodes and ranges themselves make the selection again. `differing` computes
the measures once more and says where another machine sees it differently: sums differ in their last digits between
machines, and an episode at a limit may then fall on its other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlds_cli.base.array_types import IntArray
from rlds_cli.base.progress import Progress
from rlds_cli.base.text import did_you_mean, plural
from rlds_cli.dataset import Dataset
from rlds_cli.errors import InvalidArgument, RldsError
from rlds_cli.look.checks import run
from rlds_cli.look.checks.findings import CODES, MOST_PLACES, Finding
from rlds_cli.look.measures import catalogue, whole
from rlds_cli.look.measures.blocks import Block
from rlds_cli.look.measures.comparing import ComparedMeasures
from rlds_cli.look.measures.found import of_rule
from rlds_cli.look.measures.rules import RULES
from rlds_cli.look.measures.vectors import IDLE_CHANGE, LAST_LEFT_OUT, SHORTEST_IDLE, SHORTEST_KEPT, Vectors

OPENPI, _OPENPI_MEASURE = "openpi-idle", "quality_openpi_idle_share"
TRIMS = ("idle", OPENPI)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """Selected episodes, and the ranges of their steps that stay, for ``dataset.trim(ranges, NAME)``.

    An episode that is not named in ``ranges`` stays whole, one without a range is left out. The account of the measures
    goes with the dataset.
    """

    dataset: Dataset
    ranges: Mapping[int, list[tuple[int, int]]]


def found_by(m: ComparedMeasures, codes: Iterable[str]) -> list[Finding]:
    """Return the findings of these codes, in the whole version.

    Raises
    ------
    InvalidArgument
        There is no such code.
    RldsError
        A measure was not computed, or the dataset lacks what it needs; or a finding names no episodes.
    """
    wanted = list(dict.fromkeys(codes))
    for code in wanted:
        if code not in CODES:
            near = did_you_mean(code, CODES)
            hint = "docs/guides/check.md and docs/reference/measures.md list them"
            raise InvalidArgument(f'No finding is called "{code}".{near}', hint=hint)
        if code in whole.CODES:
            named = f"rlds check ID --episodes {code}, or with --against OTHER, prints the episodes for --where"
            raise InvalidArgument(
                f"{code} is a finding of the whole dataset, by which no episodes are left out.",
                hint="" if code == whole.DRIFT else named,
            )
    found = list[Finding]()
    for code in wanted:
        for rule in (r for r in RULES if r.code == code):
            m.column(rule.measure)  # which says what is missing
            found += of_rule(m, rule)
    rest = [code for code in wanted if not any(r.code == code for r in RULES)]
    if rest:
        report = run.check(Dataset(m.store))
        for code in rest:
            report.episodes_of(code)  # which refuses a finding that names no episodes
        found += [f for f in report.findings if f.code in rest]
    return found


def dropping(m: ComparedMeasures, codes: Sequence[str]) -> Dataset:
    """Return the selected episodes without those that findings of these codes name; raises as `found_by`."""
    found = found_by(m, codes)
    gone = {k for f in found for k in f.episodes}
    index = m.store.table.numbers if m.index is None else m.index
    stays = index[~np.isin(index, np.array(sorted(gone), np.int64))]
    account = {"drop": list(codes), "measures": _versions(m, found), "findings": [_told(f) for f in found]}
    return _selected(m, stays, account, {"drop-findings": ",".join(codes)})


def _selected(m: ComparedMeasures, index: IntArray, account: Mapping[str, Any], said: Mapping[str, Any]) -> Dataset:
    """Return episodes with the account of the measures by which they, or steps of them, are chosen."""
    accounts = [*m.selected_by.get("measured", ()), account]
    return Dataset(m.store, index, how={**m.selected_by, **said, "measured": accounts})


def trimming(m: ComparedMeasures, what: str) -> Trimmed:
    """Return which steps of the selected episodes stay by ``idle`` or ``openpi-idle``.

    ``idle`` cuts the ranges out that findings of this code name; ``openpi-idle`` applies openpi's rule to all episodes.

    Raises
    ------
    InvalidArgument
        It is neither of them.
    RldsError
        As `found_by`.
    """
    if what not in TRIMS:
        raise InvalidArgument(f'Nothing is trimmed by the name "{what}".', hint=f"--trim {', --trim '.join(TRIMS)}")
    index = m.store.table.numbers if m.index is None else m.index
    if what == OPENPI:
        m.column(_OPENPI_MEASURE)
        kept = _kept_by_openpi(m, index)
        rule = {
            "idle_change": IDLE_CHANGE,
            "shortest_idle": SHORTEST_IDLE,
            "shortest_kept": SHORTEST_KEPT,
            "last_left_out": LAST_LEFT_OUT,
        }
        version = {_OPENPI_MEASURE: m.version(_OPENPI_MEASURE)}
        by_rule = {"trim": what, "measures": version, "rule": rule}
        return Trimmed(dataset=_selected(m, index, by_rule, {"trim": what}), ranges=kept)
    found = found_by(m, [what])
    lengths = m.store.episodes["length"]
    places = {number: k for k, number in enumerate(index.tolist())}
    cut: dict[int, list[tuple[int, int]]] = {}
    for r in (r for f in found for r in f.ranges if r.episode in places):
        cut.setdefault(r.episode, []).append((r.first, r.stop))
    ranges = {places[number]: _between(sorted(gone), int(lengths[number])) for number, gone in cut.items()}
    account = {"trim": what, "measures": _versions(m, found), "findings": [_told(f) for f in found]}
    return Trimmed(dataset=_selected(m, index, account, {"trim": what}), ranges=ranges)


def _between(gone: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Return the ranges of an episode between those that are cut out, which ascend and do not overlap."""
    edges = [0, *(edge for pair in gone for edge in pair), length]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]


def _kept_by_openpi(m: ComparedMeasures, index: IntArray) -> dict[int, list[tuple[int, int]]]:
    kept: dict[int, list[tuple[int, int]]] = {}
    for k, number in enumerate(index.tolist()):
        runs = Vectors(Block(m.rows, number, number + 1), m.roles).kept_by_openpi
        kept[k] = list(zip(runs.first.tolist(), runs.stop.tolist(), strict=True)) if runs is not None else []
    return kept


def _versions(m: ComparedMeasures, found: Sequence[Finding]) -> dict[str, Any]:
    return {f.measure: m.version(f.measure) for f in found if f.measure}


def _told(f: Finding) -> dict[str, Any]:
    told = {"code": f.code, "measure": f.measure, "episodes": list(f.episodes)}
    ranges = [[r.episode, r.first, r.stop] for r in f.ranges]
    return told | {"ranges": ranges, "siblings": asdict(f.siblings) if f.siblings else None}


# -- once more, on another machine


def differing(
    m: ComparedMeasures,
    account: Mapping[str, Any],
    *,
    jobs: int | None = None,
    progress: Progress | bool | None = None,
) -> tuple[str, ...]:
    """Compute the measures of an account once more, and say where the result is another one; empty if it is the same.

    Those of cameras decode all frames. ``m`` is of the dataset that was selected from. The account may come from a
    stranger.
    """
    try:
        versions = account.get("measures") or {}
        for name, version in versions.items():
            if m.version(name) != version:
                return (f"{name} has version {m.version(name)} here, and had {version}: it was not compared",)
        groups = {catalogue.measure(n).group for n in versions}
        m.compute({"motion", *groups} if "labels" in groups else groups, jobs=jobs, progress=progress)
        if account.get("findings") is not None:
            codes = dict.fromkeys(str(f["code"]) for f in account["findings"])
            return _other_findings(account["findings"], found_by(m, codes))
        if "where" in account:
            among, before = (_listed(account[side], m.store.manifest.counts.episodes) for side in ("among", "episodes"))
            now = Dataset(m.store, among).select(where=str(account["where"])).episodes.index
            return _other_numbers(str(account["where"]), before.tolist(), now.tolist())
    except RldsError as e:
        return (f"measures were not computed again: {e.message.rstrip('.')}",)
    except (AttributeError, KeyError, TypeError, ValueError):
        return ("the account of its measures cannot be read",)
    return ()


def _listed(runs: Sequence[Sequence[int]], count: int) -> IntArray:
    """Return the numbers of runs [first, stop); ValueError for those of no episode."""
    if not all(0 <= a < b <= count for a, b in runs):
        raise ValueError("no such episodes")
    return np.array([k for a, b in runs for k in range(a, b)], np.int64)


def _other_findings(before: Sequence[Mapping[str, Any]], now: Sequence[Finding]) -> tuple[str, ...]:
    told = list[str]()
    for code in dict.fromkeys(str(f["code"]) for f in before):
        earlier = sorted({int(k) for f in before if f["code"] == code for k in f["episodes"]})
        told += _other_numbers(code, earlier, sorted({k for f in now if f.code == code for k in f.episodes}))
    return tuple(told)


def _other_numbers(what: str, before: Sequence[int], now: Sequence[int]) -> tuple[str, ...]:
    gone, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    told = [f"{what} does not hold here for {_in_words(gone)}"] if gone else []
    return (*told, *([f"{what} holds here for {_in_words(new)}, and did not where it was decided"] if new else []))


def _in_words(numbers: Sequence[int]) -> str:
    named = ", ".join(map(str, numbers[:MOST_PLACES]))
    return f"{plural(len(numbers), 'episode')}: {named}{', …' if len(numbers) > MOST_PLACES else ''}"
