"""Minari's HDF5: a group for each episode, beside a description.

::

    <directory>/data/main_data.hdf5
        episode_<k>/   attributes id, total_steps, seed, options/<key>
            observations   [T+1, ...]; a group for each Dict, a group of _index_<i> for each Tuple
            actions        [T, ...]
            rewards terminations truncations   [T]; the last step of an episode that was cut has no flag
            infos/<key>    [T+1, ...] of info/<key>, [T, ...] of next/info/<key>
    <directory>/data/metadata.json

What is neither observation nor action, reward or flag is an info. Images of observations stay encoded if every
observation and action that Minari takes for images is, since it has one switch for all of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rlds_cli.archives.exports.content import Loss
from rlds_cli.archives.exports.format import sync
from rlds_cli.archives.exports.hdf5 import (
    Column,
    GroupedFormat,
    HDF5Layout,
    decoded,
    fitting,
    losses_of_values,
    placed,
    renamed,
)
from rlds_cli.base import text
from rlds_cli.base.array_types import Array
from rlds_cli.base.repeated import Repeated
from rlds_cli.base.text import is_below
from rlds_cli.errors import ExportError, InvalidArgument
from rlds_cli.ted import CUT, FLAGS, REWARD, VIDEO, Field, Space

VERSION = "0.5.4"  # of Minari, whose layout this is
_HOME = "MINARI_DATASETS_PATH"
_ID = re.compile(r"(?:[-_\w][-_\w/]*[-_\w]+/)?[-_\w]+?-v\d+")
_STEPS = {REWARD: "rewards", FLAGS[0]: "terminations", FLAGS[1]: "truncations"}
_OF_TUPLE = re.compile(r"_index_\d+")
_LEAST_SIDE = 32  # of what Minari takes for an image
_LONGEST = 32 << 10  # bytes of options: HDF5 keeps attributes in the header of a group, of at most 64 KiB
_KNOWN = {"author": list, "author_email": list, "requirements": list} | dict.fromkeys(
    ("algorithm_name", "code_permalink", "description", "docs_url"), str
)
_DESCRIPTION = "minari/metadata.json"


class Minari(GroupedFormat):
    """Minari's layout in HDF5."""

    name = "minari"
    reader = "minari"
    can = frozenset(("final", "cut", "seeds", "options"))

    def file(self, directory: Path) -> Path:
        """Return the file."""
        return directory / "data" / "main_data.hdf5"

    def files(self, directory: Path) -> Sequence[Path]:
        """Return the directory: its metadata are imported, too."""
        return [directory]

    def group(self, episode: int) -> str:
        """Return the group of an episode."""
        return f"episode_{episode}"

    # -- what is lost

    def losses(self) -> list[Loss]:
        """Return the losses; the description of an imported Minari dataset is written anew."""
        known = set(self.content.dataset.manifest.metadata) <= {_DESCRIPTION}
        found = [loss for loss in super().losses() if not (known and loss.kind == "metadata")]
        odd = next((o for o in set(self.content.table.options) - {None} if not _comes_back(o)), None)
        if odd is not None and not isinstance(self.content.table.options, Repeated):
            found.append(Loss("options", f"reset options, among them {odd[:60]}"))
        return found

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: placements, names that are not infos, images, texts."""
        fields, taken = self.content.fields, set[str]()
        encoded = self._encoded()
        for f in sorted(fields.values(), key=lambda f: (_wanted(f.name) != f.name, f.name)):
            found = list(losses_of_values(self.content, f))
            yield from found
            if any(loss.kind == "field" for loss in found):
                continue
            name = _unique(_wanted(f.name), taken)
            taken.add(_key(name))
            yield from renamed(f.name, name)
            if not name.startswith("next/"):
                yield from placed(f, "root" if is_below(name, "action") else "both")
            if f.kind == "frames" and f.name not in encoded:
                yield decoded(f)
        if REWARD not in fields:
            yield Loss("added", "that there are no rewards: they will be 0", REWARD, "float64")

    def check(self) -> None:
        """Refuse datasets without observations or actions."""
        names = self.content.fields
        for root in ("observation", "action"):
            if not any(is_below(n, root) for n in names):
                raise ExportError(f"{self.content.id} has no {root} that Minari could hold.")
        _dataset_id(self.target)

    def notes(self) -> list[str]:
        """Say how Minari finds the dataset."""
        id, found = _dataset_id(self.target)
        if found:
            return [f'minari.load_dataset("{id}") reads it']
        return [f'Minari\'s id of it is {id}; minari.MinariDataset("{self.target / "data"}") reads it']

    def _encoded(self) -> set[str]:
        """Return the fields whose images stay encoded: all that Minari takes for images, or none."""
        images = [f for f in self.content.fields.values() if _is_image(f) and not f.name.startswith("next/")]
        own = [f for f in images if f.kind == "frames"]
        if len(own) < len(images) or any(f.codec == VIDEO or f.placement != "both" for f in own):
            return set()
        shown = any(f.shape[2:] == (1,) or self.content.missing_frames(f.name) for f in own)
        return set() if shown else {f.name for f in own}

    # -- what is written

    def columns(self) -> list[Column]:
        """Return the datasets of an episode."""
        found = []
        for name, f in self.content.fields.items():
            everything = not name.startswith("next/") and not is_below(name, "action")
            found.append(Column.of(f, self._path(name), "all" if everything else "steps"))
        return found

    def _path(self, name: str) -> str:
        root, _, key = name.partition("/")
        if root not in ("observation", "action") or not key:
            return _key(name)
        space = Space(self._space(root))
        parts = []
        for part in key.split("/"):
            parts.append(f"_index_{part}" if space.type == "Tuple" else part)
            space = space.at([part])
        return f"{root}s/{'/'.join(parts)}"

    def values(self, column: Column, values: Array, start: int) -> Array:
        """Return values of steps as they are stored: the last step of an episode that was cut has no flag."""
        table = self.content.table
        if column.field != FLAGS[1] or not len(values):
            return values
        last = self.content.last_rows(start + 1, start + len(values) + 1)
        cut = last[table.end[self.content.episodes_at(last)] == CUT] - 1 - start
        if len(cut):
            values = values.copy()
            values[cut] = False
        return values

    def describe(self, make: HDF5Layout, group: h5py.h5g.GroupID, episode: int) -> None:
        """Write number, steps, seed and options."""
        table = self.content.table
        make.number(group, "id", episode)
        make.number(group, "total_steps", int(table.length[episode]))
        if (seed := table.seed[episode]) is not None:
            make.number(group, "seed", seed, "uint64")
        if options := table.options[episode]:
            h5py.Group(group).attrs.update(_flat(json.loads(options), "options"))

    def close(self, f: h5py.File) -> None:
        """Give every episode its infos, also if there are none: Minari's own functions look into them."""
        if not any(c.key.startswith("infos/") for c in self.columns()):
            make = HDF5Layout()
            for k in range(len(self.content.table)):
                make.group(f.id, f"{self.group(k)}/infos")

    def finish(self, directory: Path, results: Mapping[str, Any]) -> None:
        """Write the description."""
        path = self.file(directory).with_name("metadata.json")
        path.write_text(json.dumps(self._description(self.file(directory).stat().st_size), ensure_ascii=False))
        sync(path)

    def _description(self, size: int) -> dict[str, Any]:
        m, table = self.content.dataset.manifest, self.content.table
        facts = {"algorithm_name" if k == "algorithm" else k: v for k, v in m.facts.items()}
        about = {
            k: [v] if kind is list and isinstance(v, str) else v for k, kind in _KNOWN.items() if (v := facts.get(k))
        }
        scores = ("ref_min_score", "ref_max_score", "num_episodes_average_score")
        specs = {key: m.env.get(name) for key, name in (("env_spec", "spec"), ("eval_env_spec", "eval_spec"))}
        encoded = any(c.kind == "frames" for c in self.columns())
        return {
            "total_episodes": len(table),
            "total_steps": int(table.length.sum()),
            "data_format": "hdf5",
            "jpeg_encoding": encoded,
            "observation_space": json.dumps(self._space("observation")),
            "action_space": json.dumps(self._space("action")),
            **{key: json.dumps(spec) for key, spec in specs.items() if spec},
            "dataset_id": _dataset_id(self.target)[0],
            "minari_version": VERSION,
            **{k: v for k, v in about.items() if isinstance(v, _KNOWN[k])},
            **{k: facts[k] for k in scores if isinstance(facts.get(k), int | float)},
            "dataset_size": round(size / 1e6, 1),
        }

    def _space(self, root: str) -> dict[str, Any]:
        """Return the space of observations or actions: the dataset's own as far as it fits the fields."""
        said = self.content.dataset.manifest.spaces.get(root)
        return _fitted(Space(said), [f for n, f in self.content.fields.items() if is_below(n, root)], root)


# -- names


def _wanted(name: str) -> str:
    """Return the name of the field that Minari holds the field ``name`` as."""
    after, plain = name.startswith("next/"), name.removeprefix("next/")
    own = name in _STEPS or (not after and name.split("/")[0] in ("observation", "action"))
    wanted = name if own or plain.startswith("info/") else f"{'next/' * after}info/{plain}"
    return "/".join(p.replace("_index_", "index_") if _OF_TUPLE.fullmatch(p) else p for p in wanted.split("/"))


def _key(name: str) -> str:
    """Return the path of a field in an episode, but for the parts of Tuples."""
    if name in _STEPS:
        return _STEPS[name]
    plain = name.removeprefix("next/")
    root, _, key = plain.partition("/")
    return f"{root}s/{key}" if key else f"{root}s"


def _unique(name: str, taken: set[str]) -> str:
    key = _key(name)
    found = fitting(key, taken)
    return name if found == key else name[: len(name) - len(key.partition("/")[2])] + found.partition("/")[2]


def _dataset_id(target: Path) -> tuple[str, bool]:
    """Return Minari's id of the dataset in a directory, and whether Minari finds it there by this id."""
    datasets = Path(os.environ.get(_HOME) or Path.home() / ".minari" / "datasets").absolute()
    if datasets in target.parents:
        id = target.relative_to(datasets).as_posix()
        if not _ID.fullmatch(id):
            raise InvalidArgument(
                f"{id}, a directory below Minari's datasets, is not an id of Minari.", hint="NAME-v0, NAMESPACE/NAME-v0"
            )
        return id, True
    plain = re.sub(r"[^-_\w]", "-", target.name)
    return (plain if _ID.fullmatch(plain) else f"{plain}-v0"), False


# -- options


def _flat(options: Mapping[str, Any], above: str) -> dict[str, Any]:
    """Return options as Minari keeps them in attributes: ``options/<key>/<key>``."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        name = f"{above}/{key}"
        found |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def _comes_back(options: str | None) -> bool:
    """Return whether options that went into attributes are read as the same text."""
    try:
        value = json.loads(options or "")
        return (
            isinstance(value, dict)
            and len(options or "") < _LONGEST
            and json.dumps(_read(value), sort_keys=True, ensure_ascii=False) == options
        )
    except (TypeError, ValueError, OverflowError):
        return False


def _read(value: Any) -> Any:
    """Return a value of options as it is read from attributes; raises ValueError where they cannot hold it."""
    if isinstance(value, dict):
        if not value or any(not k or "/" in k or not k.isprintable() or k in (".", "..") for k in value):
            raise ValueError(value)
        return {k: _read(v) for k, v in value.items()}
    array = np.asarray(value)
    texts = array.dtype.kind == "U" and all(isinstance(v, str) for v in np.ravel(np.asarray(value, object)))
    if array.dtype.kind not in "biuf" and not texts:
        raise ValueError(value)
    if texts and any(b"\0" in v.encode() for v in array.ravel().tolist()):
        raise ValueError(value)
    return array.tolist()


# -- Space


def _is_image(f: Field) -> bool:
    """Return whether Minari takes observations or actions for images, which it encodes."""
    shown = f.name.split("/")[0] in ("observation", "action") and f.dtype == "uint8" and len(f.shape) in (2, 3)
    return shown and min(f.shape[:2]) >= _LEAST_SIDE


def _fitted(space: Space, fields: Sequence[Field], root: str) -> dict[str, Any]:
    """Return a space of exactly the fields at and below ``root``."""
    own = next((f for f in fields if f.name == root), None)
    if own is not None:
        return _leaf(space, own)
    keys = list(dict.fromkeys(f.name[len(root) + 1 :].split("/")[0] for f in fields))
    parts = {
        k: _fitted(space.at([k]), [f for f in fields if is_below(f.name, f"{root}/{k}")], f"{root}/{k}") for k in keys
    }
    numbers = [str(i) for i in range(len(keys))]
    if space.type == "Tuple" and sorted(keys, key=text.natural) == numbers:
        return {"type": "Tuple", "subspaces": [parts[n] for n in numbers]}
    return {"type": "Dict", "subspaces": parts}


def _leaf(space: Space, f: Field) -> dict[str, Any]:
    """Return the space of a field: the dataset's own if it is one of such values, or else that of all values."""
    of_text = space.type == "Text"
    if f.kind == "frames" or space.row_shape != f.shape or of_text != (f.kind == "text"):
        space = Space.inferred([f], f.name)
    form = space.form
    assert form is not None
    match space.type:
        case "Box":
            return {**form, "low": _bounds(form, "low"), "high": _bounds(form, "high")}
        case "Discrete":
            return {"dtype": "int64", "start": 0, **form}
        case "MultiDiscrete":
            return {"dtype": "int64", "start": np.zeros_like(form["nvec"]).tolist(), **form}
    return dict(form)


def _bounds(space: Mapping[str, Any], which: str) -> Any:
    """Return a bound of a Box for each element, where one number stands for all of them."""
    dtype = np.dtype(space["dtype"])
    bound = np.array(space[which], object).astype(np.float64) if dtype.kind == "f" else np.array(space[which], dtype)
    return np.broadcast_to(bound, tuple(space["shape"])).tolist()
