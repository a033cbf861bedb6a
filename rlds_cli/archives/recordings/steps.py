"""Fields and steps of a recording: which column is which field, and which message a row has."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from rlds_cli.archives import tasks
from rlds_cli.archives.formats.topics import SECOND, Recording
from rlds_cli.archives.names import is_observation, meaning
from rlds_cli.archives.recordings.columns import Survey, TopicColumn, listed
from rlds_cli.base.array_types import IntArray
from rlds_cli.base.text import did_you_mean, plural
from rlds_cli.errors import UnknownLayout
from rlds_cli.ted import (
    FLAGS,
    TASK,
)

AGE = "info/age/"  # fields of the ages of topics
_ACTION = re.compile(r"(^|[/_])(cmd|command|commands|action|actions|target|targets|setpoint|setpoints)($|[/_])", re.I)
_FEW_ROWS, _MOST_ROWS = 1 << 20, 100  # rows; rows for a message
_SHOWN = 12  # columns that a message lists


def fields_of(recording: Recording, seen: Survey, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each field: those that the user mapped, else all by their names.

    Raises
    ------
    UnknownLayout
        A mapped column is not there, or nothing is an action.
    """
    name = recording.path.name
    if chosen:
        for field, key in chosen.items():
            if key not in seen.columns:
                near = did_you_mean(key, list(seen.columns))
                raise UnknownLayout(
                    f"{name} has no column {key}, which --map {field}={key} names.{near}",
                    hint=f"it has {', '.join([*seen.columns][:_SHOWN])}",
                )
        fields = {"next/" + f if f in ("reward", *(n[5:] for n in FLAGS)) else f: key for f, key in chosen.items()}
    else:
        keys: dict[str, str] = {}
        for key in seen.columns:
            keys.setdefault(key.strip("/"), key)
        plain = {k: seen.columns[key] for k, key in keys.items()}
        known = meaning({k: c for k, c in plain.items() if c.kind != "frames"}, {}, name).fields
        fields = {f: keys[k] for f, k in known.items() if k in keys and f.partition("/")[0] != "info"}
        if (said := _said(plain)) is not None:
            fields[TASK] = keys[said]
        used = {*fields.values()}
        rest = {k: key for k, key in keys.items() if key not in used}
        actions = {k for k in rest if _ACTION.search(k)} if not any(is_action(f) for f in fields) else set()
        for k, key in rest.items():
            if k not in actions:
                fields[f"observation/{k}"] = key
            else:
                fields["action" if len(actions) == 1 else f"action/{k}"] = key
        if "observation" in fields and any(f.startswith("observation/") for f in fields):
            key = fields.pop("observation")
            fields[f"observation/{key.strip('/')}"] = key
    if not any(map(is_action, fields)) or not any(map(is_observation, fields)):
        lacking = "action" if not any(map(is_action, fields)) else "observation"
        odd = f"; {'; '.join(n.text for n in seen.notes)}" if seen.notes else ""
        raise UnknownLayout(
            f"{name}: no topic is known to be the {lacking}. It has {listed(recording)}{odd}.",
            hint=f"--map {lacking}=COLUMN, and --map for the other fields: {', '.join([*seen.columns][:_SHOWN])}",
        )
    return dict(sorted(fields.items()))


def _said(columns: Mapping[str, TopicColumn]) -> str | None:
    """Return the column of texts whose topic is called as one that says what an episode is about; None without one."""
    of = {c.topic.rpartition("/")[2]: k for k, c in columns.items() if c.kind == "text" and c.leaf in ("", "data")}
    return next((of[name] for name in tasks.NAMES if name in of), None)


def is_action(field: str) -> bool:
    """Return whether a field is an action, or a part of one."""
    return field.partition("/")[0] == "action"


def rows_of(recording: Recording, seen: Survey, fields: Mapping[str, str], hz: float | None) -> IntArray:
    """Return the time of each row in nanoseconds [rows].

    Raises
    ------
    UnknownLayout
        The topics have fewer than two rows in common.
    """
    used = {seen.columns[key].topic for key in fields.values()}
    first = max(int(seen.times[t][0]) for t in used)
    last = min((int(seen.times[t][-1]) for t in used if len(seen.times[t]) > 1), default=first)
    if hz is not None:
        count = int((last - first) * hz / SECOND + 1e-6) + 1 if last >= first else 0
        _check_gap(recording.path.name, {t: seen.times[t] for t in used}, count, hz)
        times = first + np.rint(np.arange(count) * SECOND / hz).astype(np.int64)
    else:
        clock = seen.times[seen.columns[next(key for f, key in fields.items() if is_action(f))].topic]
        times = np.unique(clock[(clock >= first) & (clock <= last)])
    if len(times) < 2:
        raise UnknownLayout(
            f"{recording.path.name}: its topics have {plural(len(times), 'row')} in common: they begin together at "
            f"{first / SECOND:.3f} s, and the first to end does so at {last / SECOND:.3f} s.",
            hint="--topics or --map without the topic that lacks messages; --hz makes more rows",
        )
    return times


def _check_gap(name: str, times: Mapping[str, IntArray], count: int, hz: float) -> None:
    """Refuse far more rows than messages: a clock that was set, or a file of two days, makes billions of them."""
    messages = sum(map(len, times.values()))
    if count <= max(_FEW_ROWS, _MOST_ROWS * messages):
        return
    every = np.unique(np.concatenate([*times.values()]))
    k = int(np.argmax(np.diff(every)))
    raise UnknownLayout(
        f"{name}: {plural(messages, 'message')} would make {count:,} rows at {hz:g} Hz, for its times have a gap of "
        f"{(every[k + 1] - every[k]) / SECOND:,.1f} s, from {every[k] / SECOND:.3f} to {every[k + 1] / SECOND:.3f} s.",
        hint="cut the recording there; or --topics without the topic whose times are wrong, or a lower --hz",
    )


def at(times: IntArray, rows: IntArray, *, nearest: bool) -> IntArray:
    """Return the number of the latest message at each of ``rows``, or of the nearest one."""
    latest = np.searchsorted(times, rows, "right") - 1
    if not nearest:
        return latest
    after = np.minimum(latest + 1, len(times) - 1)
    return np.where(times[after] - rows < rows - times[latest], after, latest)
