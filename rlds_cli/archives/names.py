"""The columns of an archive: what their names mean, and the fields that they become.

`meaning` goes by the usual names in a flat file, or in one episode. TED's own names come first, with ``/``, ``.`` or
``_`` (``next/reward``, ``next.reward``, ``next_reward``), then those of D4RL, Gymnasium and others. A column below a
known name is a part of that field (``obs/joint_pos``, ``observation.state``); numbered columns are its components
(``obs_0``, ``obs_1``, ...). `row_field` makes a field of an HDF5 dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np

from rlds_cli.archives.formats import camera_files
from rlds_cli.archives.formats.rllib_episodes import is_packed, packed
from rlds_cli.archives.formats.tables import NOT, WITHOUT, Table
from rlds_cli.archives.readers import DROP, FILL, Archive
from rlds_cli.base.text import did_you_mean, is_below, natural
from rlds_cli.errors import CorruptArchive, UnknownLayout
from rlds_cli.ted import FLAGS, REWARD, Field, Note, Placement, Scalar

NEXT_OBSERVATION = "next/observation"
DONE, NEXT_DONE = "done", "next/done"

NAMES: Mapping[str, tuple[str, ...]] = {
    "observation": ("observation", "observations", "obs", "ob", "states", "state", "_obs_key", "state_features"),
    "action": ("action", "actions", "act", "acts"),
    REWARD: ("next/reward", "next/rewards", "reward", "rewards", "rew", "rews"),
    FLAGS[0]: (
        *("next/terminated", "next/terminal", "next/terminals"),
        *("terminated", "terminateds", "terminal", "terminals", "termination", "terminations", "is_terminal"),
    ),
    FLAGS[1]: (
        *("next/truncated", "next/timeout", "next/timeouts"),
        *("truncated", "truncateds", "truncation", "truncations", "timeout", "timeouts"),
    ),
    NEXT_DONE: ("next/done", "next/dones", "done", "dones"),
    NEXT_OBSERVATION: (
        *("next/observation", "next/observations", "next/obs", "next/state", "next/states", "next/state_features"),
        *("new_obs", "new_observation", "new_observations", "obs_next", "observation_next", "observations_next"),
    ),
}
MASKS = ("masks", "mask", "not_terminal")
IDS = (
    *("collector/traj_ids", "episode", "episode_id", "episode_ids", "episode_index", "episode_idx", "episode_number"),
    *("traj", "traj_id", "traj_ids", "traj_index", "traj_idx", "trajectory", "trajectory_id", "trajectory_index"),
    *("trial", "trial_id", "demo", "demo_id", "rollout_id", "eps_id", "ep_id", "ep_idx", "mdp_id"),
)
STEPS = (
    "sequence_number",  # of ReAgent, whose "step" counts what a row sums
    *("step", "step_id", "step_idx", "step_index", "step_count", "timestep", "timesteps", "time_step"),
    *("frame_index", "time_idx", "time_idxs", "t"),
)
STARTS = ("episode_starts", "episode_start", "is_first")
LASTS = ("is_last", "episode_end")
AGENTS = ("agent_id", "agent_index", "agent")  # whose step a row is, where several act in one episode
LISTS = ("episode_ends", "episode_lengths", "episode_lens", "traj_ends", "traj_lengths")
ROOT_FLAGS = ("done", "terminated", "truncated")  # of TED: False on every step
SHORT_NAMES = {"reward": REWARD, "terminated": FLAGS[0], "truncated": FLAGS[1], DONE: NEXT_DONE}

# Names in `--map NAME=KEY` that are no fields: the columns of ids, of steps and of starts.
ROLES = {"episode": "ids", "step": "steps", "starts": "starts"}
TEXT_ROWS = 1 << 18  # rows of texts that are looked at together
EPISODE_PREFIX = "episode/"  # `--map episode/task=KEY`: a column per episode
_MOST_NAMES = 1 << 10  # columns of files whose meaning is remembered
_NUMBERED = re.compile(r"^(.*?)[_.\[/]?(\d+)\]?$")


class Shaped(Protocol):
    """A column, of which only the shape is needed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with the rows first."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of the columns of a file.

    Attributes
    ----------
    fields : mapping of str to str
        Column by name of the field, among them flags and next observations.
    ids, steps, starts, lasts, lists, agents : str or None
        The column of episode ids, of step counts, of flags at first steps, of flags at last steps, of the ends or
        lengths of all episodes, and of whose step a row is.
    more, counts : tuple of str
        Further columns that are named as ids are, and as counts of steps are.
    per_episode : mapping of str to str
        Columns of the episode table, by their names there.
    ignored : tuple of str
        Root flags of TED, which mark no ends.
    masked : bool
        Masks mark terminated steps, and terminals the ends of trajectories (jaxrl, OGBench).
    """

    fields: Mapping[str, str]
    ids: str | None = None
    steps: str | None = None
    starts: str | None = None
    lasts: str | None = None
    lists: str | None = None
    agents: str | None = None
    more: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    per_episode: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    masked: bool = False
    notes: tuple[Note, ...] = ()

    @property
    def flags(self) -> bool:
        """True if a column marks how episodes end."""
        return bool({*FLAGS, NEXT_DONE} & set(self.fields))


def meaning(columns: Mapping[str, Shaped], chosen: Mapping[str, str], file: str) -> Meaning:
    """Find the meaning of the columns of a file; the user's choice comes first.

    Parameters
    ----------
    columns : mapping
        By name, with their shapes.
    chosen : mapping of str to str
        Field -> key; a key may be a group, a pattern (``obs_*``), a list (``[x, y]``) or derived (``not:masks``).
    file : str
        For messages.

    Raises
    ------
    UnknownLayout
        A chosen key is not there.
    """
    if len(columns) > _MOST_NAMES:
        return _meaning(columns, chosen, file)
    try:
        found = _meaning_of(tuple(columns), tuple(chosen.items()))
    except _NeedsShapes:
        return _meaning(columns, chosen, file)
    return replace(found, fields=dict(found.fields), per_episode=dict(found.per_episode))


class _NeedsShapes(Exception):
    """What is wrong is said with the shapes of columns, and the name of the file."""


@lru_cache(16)
def _meaning_of(names: tuple[str, ...], chosen: tuple[tuple[str, str], ...]) -> Meaning:
    """Find the meaning of columns by their names: thousands of files may have the same ones."""
    shapes: dict[str, Any] = dict.fromkeys(names)
    try:
        return _meaning(shapes, dict(chosen), "")
    except (AttributeError, UnknownLayout) as e:
        raise _NeedsShapes from e


def _meaning(columns: Mapping[str, Shaped], chosen: Mapping[str, str], file: str) -> Meaning:
    heads = _heads(columns)
    said = {SHORT_NAMES.get(k, k): v for k, v in chosen.items()}
    roles = {ROLES[k]: v for k, v in said.items() if k in ROLES}
    per_episode = {k.removeprefix(EPISODE_PREFIX): v for k, v in said.items() if k.startswith(EPISODE_PREFIX)}
    fields: dict[str, str] = {}
    notes: list[Note] = []
    for name, key in said.items():
        if name in ROLES or name.startswith(EPISODE_PREFIX):
            check_key(columns, key, file)
        else:
            named, listed = _chosen(columns, name, key, file)
            fields.update(named)
            notes += listed
    taken = {*fields.values(), *said.values(), *(camera_files.named_by(key)[1] for key in said.values())}
    cameras = {name for name, key in fields.items() if key.startswith(camera_files.KINDS)}  # beside other observations
    is_ted = any(head in heads for head in ("next/terminated", "next/truncated", "next/done"))
    for name, heads_of in NAMES.items():
        parts = {k for k in fields.keys() - cameras if is_below(k, name)}
        if name not in parts:
            known = [h for h in heads_of if h in heads and not (is_ted and h in ROOT_FLAGS)]
            named, listed = _found(heads, name, known, taken)
            if not parts or name not in named:  # a chosen part has other parts beside it, and not the whole
                fields |= {k: v for k, v in named.items() if k not in fields and free_name(k, parts) == k}
                notes += listed
    found = Meaning(
        fields=fields,
        ids=roles.get("ids") or _first(heads, IDS, taken),
        steps=roles.get("steps") or _first(heads, STEPS, taken),
        starts=roles.get("starts") or _first(heads, STARTS, taken),
        lasts=_first(heads, LASTS, taken),
        lists=_first(heads, LISTS, taken),
        agents=_first(heads, AGENTS, taken),
        more=() if "ids" in roles else tuple(_all(heads, IDS, taken))[1:],
        counts=() if "steps" in roles else tuple(_all(heads, STEPS, taken))[1:],
        per_episode=per_episode,
        ignored=tuple(heads[h][0] for h in ROOT_FLAGS if is_ted and h in heads and heads[h][0] not in taken),
        notes=tuple(notes),
    )
    return _with_masks(found, heads, taken)


def _with_masks(found: Meaning, heads: Mapping[str, Sequence[str]], taken: set[str]) -> Meaning:
    masks = _first(heads, MASKS, taken)
    fields = dict(found.fields)
    if masks and not set(FLAGS) & taken and fields.get(FLAGS[0]) not in taken:
        ends = fields.pop(FLAGS[0], None) or fields.pop(NEXT_DONE, None)
        if ends and FLAGS[1] not in fields:
            fields[FLAGS[1]] = ends
        fields[FLAGS[0]] = NOT + masks
        return replace(found, fields=fields, masked=True)
    return found


def flags_of(found: Meaning) -> tuple[dict[str, str], str | None]:
    """Resolve ``done`` to flags; also return the column of ``done`` if it must be compared with them.

    ``done`` alone means terminated. Beside ``truncated`` it means terminated in the rows that are not truncated.
    """
    fields = dict(found.fields)
    done = fields.pop(NEXT_DONE, None)
    terminated, truncated = (fields.get(flag) for flag in FLAGS)
    if done is None or found.masked:
        return fields, None
    if terminated is None:
        fields[FLAGS[0]] = done if truncated is None else f"{done}{WITHOUT}{truncated}"
    elif truncated is None:
        fields[FLAGS[1]] = f"{done}{WITHOUT}{terminated}"
    return fields, done


def says_more(found: Meaning) -> bool:
    """Tell whether a file marks its episodes by more than D4RL's terminals and timeouts."""
    marks = (found.ids, found.steps, found.starts, found.lasts, found.lists)
    return any(marks) or found.masked or NEXT_DONE in found.fields or bool(found.ignored)


def has_essentials(found: Meaning) -> bool:
    """Tell whether there are observations and actions."""
    tops = {name.partition("/")[0] for name in found.fields}
    return {"observation", "action"} <= tops


def _heads(columns: Iterable[str]) -> dict[str, list[str]]:
    """Group column names by their first component, in lower case; ``next/X`` counts as one component."""
    heads: dict[str, list[str]] = {}
    for name in sorted(columns, key=natural):
        heads.setdefault(_split(name)[0], []).append(name)
    return heads


def _split(name: str) -> tuple[str, str]:
    """Split a name into the known part, in lower case, and the rest."""
    if name.upper().startswith("_OBS_KEY_"):  # AMAGO's trajectories
        return "_obs_key", name[len("_OBS_KEY_") :]
    parts = re.split(r"[/.]", name)
    head = parts[0].lower()
    if head in ("next", "collector") and len(parts) > 1:
        head, parts = f"{head}/{parts[1].lower()}", parts[1:]
    elif head.startswith("next_"):
        head = f"next/{head[5:]}"
    return head, "/".join(parts[1:])


def _found(
    heads: Mapping[str, Sequence[str]], field: str, known: Sequence[str], taken: set[str]
) -> tuple[dict[str, str], list[Note]]:
    """Find the columns of a field by the first of its ``known`` names that occurs, and what to note of them."""
    for head in known:
        names = [n for n in heads[head] if n not in taken]
        exact = [n for n in names if not _split(n)[1]]
        if exact:
            return {field: exact[0]}, []
        numbered = {n: m for n in names if (m := _NUMBERED.match(_split(n)[1])) and not m.group(1)}
        if names and len(numbered) == len(names) and "." in names[0]:
            return _gathered(field, names)
        if names and field not in (REWARD, *FLAGS, NEXT_DONE):
            return {f"{field}/{_split(n)[1]}": n for n in names}, []
    if field in ("observation", "action", NEXT_OBSERVATION):
        for base in NAMES[field]:
            names = [n for head, all_of in heads.items() if _is_numbered(head, base) for n in all_of if n not in taken]
            if len(names) > 1 or (names and names[0][-1:] in "01"):
                return _gathered(field, sorted(names, key=natural))
    return {}, []


def _is_numbered(head: str, base: str) -> bool:
    match = _NUMBERED.match(head)
    return bool(match and match.group(1) == base)


def _gathered(field: str, names: Sequence[str]) -> tuple[dict[str, str], list[Note]]:
    return {field: f"[{', '.join(names)}]"}, [Note("gathered", f"{field} is made of the columns {', '.join(names)}")]


def _first(heads: Mapping[str, Sequence[str]], names: Sequence[str], taken: set[str]) -> str | None:
    return next(_all(heads, names, taken), None)


def _all(heads: Mapping[str, Sequence[str]], names: Sequence[str], taken: set[str]) -> Iterator[str]:
    """Yield the columns that have one of some names, in the order of the names."""
    for name in names:
        yield from (c for c in heads.get(name, ()) if c not in taken and not _split(c)[1])


def _chosen(columns: Mapping[str, Shaped], field: str, key: str, file: str) -> tuple[dict[str, str], list[Note]]:
    """Map fields to columns for a key of the user's: a column, a group, a pattern, a list or a derived column."""
    key = key.strip("/")
    if key.startswith("[") and key.endswith("]"):
        parts = [p.strip() for p in key[1:-1].split(",") if p.strip()]
        names = [n for p in parts for n in _matching(columns, p, file)]
        return _gathered(field, names)
    if "*" in key or "?" in key:
        return _gathered(field, _matching(columns, key, file))
    if ":" in key or WITHOUT in key:
        return {field: key}, []
    found = expand(columns, field, key)
    if not found:
        raise _missing(columns, key, file)
    return found, []


def _matching(columns: Mapping[str, Shaped], pattern: str, file: str) -> list[str]:
    if pattern in columns:
        return [pattern]
    names = sorted((n for n in columns if fnmatchcase(n, pattern)), key=natural)
    if not names:
        raise _missing(columns, pattern, file)
    return names


def check_key(columns: Mapping[str, Shaped], key: str, file: str) -> None:
    """Refuse a key of the user's that is not there, unless it is computed from others; raises UnknownLayout."""
    if key not in columns and ":" not in key and WITHOUT not in key and not key.startswith("["):
        raise _missing(columns, key, file)


def _missing(columns: Mapping[str, Shaped], key: str, file: str) -> UnknownLayout:
    shown = ", ".join(f"{n} {list(c.shape or ())}" for n, c in list(columns.items())[:12])
    return UnknownLayout(f'{file} has no "{key}".{did_you_mean(key, columns)}', hint=f"it holds {shown or 'nothing'}")


def chosen_of(
    archive: Archive, columns: Mapping[str, Shaped], keys: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Return the choices of a user, without those of columns that are not there, where these may be missing.

    ``keys`` are those of the archive, as a group of it has them.
    """
    chosen = archive.fields if keys is None else keys
    return present(columns, chosen) if archive.missing in (FILL, DROP) else chosen


def present(columns: Mapping[str, Shaped], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the choices of a user whose columns exist, and those of what every step needs."""
    return {
        name: key
        for name, key in chosen.items()
        if name in (*ROLES, *SHORT_NAMES, *SHORT_NAMES.values())
        or is_below(name, "action")
        or key.startswith("[")
        or any(c in key for c in "*?: ")
        or expand(columns, name, key.strip("/"))
    }


def scalar(value: Any) -> Scalar:
    """Return the first value of a column as the episode table holds it."""
    one = np.asarray(value).reshape(-1)[0]
    found = one.item() if isinstance(one, np.generic) else one
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found


def check_numbers(table: Table, fields: Mapping[str, str]) -> None:
    """Refuse rewards that are not numbers, and observations and actions that are texts of lists.

    Raises
    ------
    UnknownLayout
        One is not; the message names the first such row.
    """
    for name, key in fields.items():
        if table[key].dtype.kind not in "OS" or not table[key].shape or not table[key].shape[0]:
            continue
        if (found := _first_text(table, key, lambda _: True)) and is_packed(found[1]):
            raise packed(table.path.name, key)
        if name == REWARD:
            at, value = (
                _first_text(table, key, lambda v: not _is_number(v))
                or _first_text(table, key, lambda _: True)
                or (0, "")
            )
            says = "is not a number"
        elif name.partition("/")[0] in ("observation", "action") and (
            (mixed := table.mixed.get(key)) is not None and 2 * mixed.numbers >= mixed.values
        ):
            at, value, says = mixed.row, mixed.text, f"holds {mixed.numbers:,} numbers, and a text"
        elif name.partition("/")[0] in ("observation", "action") and (
            found := _first_text(table, key, lambda v: str(v).startswith(("[", "(")))
        ):
            at, value = found
            says = 'is a text, and no list of numbers as JSON has it, "[1.0, 2.0]"'
        else:
            continue
        raise UnknownLayout(
            f"{key} {says}: row {at:,} of {table.path.name} holds {value[:40]!r}.",
            hint=f"write numbers, or name another column: --map {name.removeprefix('next/')}=KEY",
        )


def _first_text(table: Table, key: str, test: Callable[[str], bool]) -> tuple[int, str] | None:
    """Find the first row of a column of texts that passes a test, and its text."""
    rows = table[key].shape[0]
    with table.rows([key]) as reader:
        for start in range(0, rows, TEXT_ROWS):
            for i, value in enumerate(reader.read(start, min(start + TEXT_ROWS, rows))[key].reshape(-1)):
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
                if test(text):
                    return start + i, text
    return None


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


# -- fields


def row_field(name: str, d: h5py.Dataset, *, scalar: bool = False) -> Field:
    """Return the field ``name`` of a dataset with one value per row; ``scalar`` reads rows ``(N, 1)`` as scalars.

    Raises
    ------
    UnknownLayout
        Values that no field can hold: compounds, references, sequences of varying length.
    """
    placement: Placement = "next" if name.startswith("next/") else "both" if is_observation(name) else "root"
    shape = d.shape[1:]
    if (camera := getattr(d, "image", None)) is not None:
        return Field(name, camera.dtype, camera.shape, placement, "frames", camera.codec)
    text = h5py.check_string_dtype(d.dtype) is not None
    if (scalar or text) and shape == (1,):
        shape = ()
    if (text and shape) or not (text or d.dtype.kind in "biufc") or d.dtype.names or d.dtype.itemsize > 16:
        what = "compound" if d.dtype.names else f"{d.dtype} {list(shape)}"
        raise UnknownLayout(
            f"{Path(d.file.filename).name}: {d.name} holds {what} values, which a field cannot hold.",
            hint="rlds_cli.create(ID, episodes) takes anything that you can read yourself",
        )
    if text:
        return Field(name, "str", shape, placement, "text")
    return _array_field(name, d.dtype.str, shape, placement)


@lru_cache(1 << 10)
def _array_field(name: str, dtype: str, shape: tuple[int, ...], placement: Placement) -> Field:
    """Return a field of arrays: thousands of files may have the same ones."""
    return Field(name, np.dtype(dtype).newbyteorder("=").name, shape, placement, "array")


def common_rows(where: str, columns: Mapping[str, Any]) -> int:
    """Return the number of rows that all columns have; raises CorruptArchive if they differ, or one has none."""
    counts = {key: c.shape[0] if c.shape else "none" for key, c in columns.items()}
    if len({*counts.values()}) > 1 or "none" in counts.values():
        listed = ", ".join(f"{key} {n}" for key, n in counts.items())
        raise CorruptArchive(f"{where}: columns have different numbers of rows: {listed}.")
    return int(next(iter(counts.values()), 0))


def is_observation(name: str) -> bool:
    """Return whether a field belongs to the observation."""
    return name.split("/", 1)[0] == "observation"


def expand(found: Iterable[str], field: str, key: str) -> dict[str, str]:
    """Map field names to keys: of the dataset ``key``, or of all datasets below the group ``key``."""
    if key in found:
        return {field: key}
    return {f"{field}/{k[len(key) + 1 :]}": k for k in found if k.startswith(key + "/")}


def free_name(key: str, taken: Iterable[str]) -> str:
    """Return ``key`` as a field name, moved below ``extra/`` if it clashes with a name that is taken."""
    clash = any(is_below(key, t) or is_below(t, key) for t in taken)
    return f"extra/{key}" if clash else key


def differences(a: Iterable[Field], b: Iterable[Field]) -> Iterator[str]:
    """Describe each field that two lists do not share."""
    left, right = {f.name: f for f in a}, {f.name: f for f in b}
    for name in sorted({*left, *right}):
        if left.get(name) != right.get(name):
            said = [f"{f.dtype} {list(f.shape)}" if f else "absent" for f in (left.get(name), right.get(name))]
            yield f"{name} is {said[0]} and {said[1]}"
