"""The names of a batch's fields, and the column behind each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property, partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.base.text import is_below, join_name
from rlds_cli.dataset import ROOT_FLAGS, Tasks, other_rewards
from rlds_cli.errors import InvalidArgument, LoaderError, NoReward, UnknownField
from rlds_cli.loader.fields import columns, episode_columns
from rlds_cli.loader.fields.columns import BatchColumn, Decoding, Grid
from rlds_cli.loader.fields.episode_columns import EpisodeFields
from rlds_cli.loader.index import PROBABILITY, WEIGHT, WINDOW, WindowIndex
from rlds_cli.loader.kernel import OF_PLACE, OF_WINDOW
from rlds_cli.loader.storage import blocks, grown, memory
from rlds_cli.loader.storage.memory import ColumnRows
from rlds_cli.loader.windows.offsets import Offsets
from rlds_cli.loader.windows.windows import Transition, Window
from rlds_cli.ted import FLAGS, REWARD, TASK, TASK_AT

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

DONE, OBSERVED, DISCOUNT, MASK = "next/done", "next/observed", "next/discount", "mask"
STEP_MASK = f"{MASK}/step"  # the name of the mask of steps beside masks of fields
STEPS = "steps_to_next_obs"  # TorchRL's name
NEXT_OBSERVATION = "next/observation"
ALL = "all"
USUAL = ("observation", "action", NEXT_OBSERVATION, REWARD, DONE, *FLAGS)

_PLAIN: dict[str, Callable[[], BatchColumn]] = {
    "step": columns.step,
    **dict.fromkeys(ROOT_FLAGS, columns.root_flag),
}


_MADE = {"return_to_go": "ReturnToGo()", "returns_to_go": "ReturnToGo()", "rtg": "ReturnToGo()"}  # by objects

Name = str | tuple[str, ...]
Names = Sequence[Name]


@runtime_checkable
class Extra(Protocol):
    """An object that computes columns for a loader: `ReturnToGo`, `Goals`."""

    def columns(self, fields: Fields) -> Mapping[str, BatchColumn]:
        """Return the columns by field name."""
        ...


Chosen = Sequence["Name | Extra | EllipsisType"]  # `Loader(fields=...)`; ... stands for the usual fields


class Fields:
    """The fields that a loader can give, and the columns behind those that were asked for.

    Parameters
    ----------
    pool : WindowIndex
    window : Window
    gives : sequence of str
        Names of the columns that samplers add.
    allowed : str, int or None
        Memory of its own that a column may take, see `memory.budget`.
    floats : str or None
        Dtype in which the loader works with floats; None for that of the archive.

    Attributes
    ----------
    shadowed : list of str
        Fields of the dataset that cannot be given: the window or the sampler gives a column of the same name.
    """

    def __init__(
        self,
        pool: WindowIndex,
        window: Window,
        gives: Sequence[str],
        allowed: str | int | None = None,
        floats: str | None = None,
    ) -> None:
        self.dataset, self.table, self.pool = pool.dataset, pool.table, pool
        self.window, self.gives, self._allowed, self.floats = window, gives, allowed, floats
        schema = self.dataset.schema
        self.behind = {name: name for name in schema}
        self.behind |= {
            f"next/{f.name}": f.name
            for f in schema.values()
            if f.placement == "both" and f"next/{f.name}" not in schema
        }
        if TASK_AT in schema:
            self.behind.setdefault(TASK, TASK_AT)
        self.left_out = [n for n in self.behind if not window.gives_next and self._needs_next(n)]
        self.n_step = window.n_step
        self._summed = (DISCOUNT, STEPS) if self.n_step > 1 else ()
        self._drawn = (*gives, *((MASK,) if window.masked else ()))
        self._episodes = EpisodeFields(self.dataset, self.table, floats)
        self.shadowed = [name for name in (*self._summed, *self._drawn) if name in self.behind]
        for name in (*self.left_out, *self.shadowed):
            self.behind.pop(name, None)
        self._rows: dict[str, ColumnRows] = {}
        self._centred: set[str] = set()
        self._extra: dict[str, BatchColumn] = {}
        if self.n_step > 1 and REWARD not in schema:
            raise no_reward(self.dataset)

    def _needs_next(self, name: str) -> bool:
        return self._after(name) or name == NEXT_OBSERVATION or name.startswith(f"{NEXT_OBSERVATION}/")

    def _after(self, name: str) -> bool:
        """Return whether ``name`` is a field placed ``both``, read one row later."""
        return name == f"next/{self.behind[name]}"

    # -- names

    def choose(self, fields: Chosen | None, *, member: bool = False, lenient: bool = False) -> list[str]:
        """Return the names of a batch's columns, in order; objects in ``fields`` make their columns here.

        None and ``...`` stand for the usual fields, and those that preprocess functions added or changed; of a
        ``member`` of a mixture the usual ones alone, because the others do not have what its functions added.
        ``lenient`` leaves out what the dataset does not have.

        Raises
        ------
        UnknownField, NoReward
            A name that the dataset does not have.
        LoaderError
            A next observation where the window gives none.
        """
        expand, chosen = self.below if lenient else self.expand, list[str]()
        for item in items(fields):
            everything = item == ALL and not self.below(ALL)
            if item is ... or everything:
                chosen += [name for usual in USUAL for name in self.below(usual)]
                chosen += [*self.behind, *self._told] if everything else [] if member else self._preprocessed()
            else:
                named = self._made(item) if isinstance(item, Extra) else listed("fields", [item])
                chosen += [name for key in named for name in expand(key)]
        if isinstance(self.window, Offsets):
            for key in self.window.offsets:
                self._check_grids(self.below(key) if lenient else self.expand(key, rows=True))
        if not chosen:
            raise InvalidArgument("A batch of no fields.", hint="fields=None gives the usual ones")
        episode_columns.check(chosen)
        return list(dict.fromkeys([*chosen, *self._added(chosen)]))

    @cached_property
    def _told(self) -> tuple[str, ...]:
        """``task`` and ``subtask``, as far as the episode table says them: of all steps, and of ranges of steps."""
        taken = (*self.behind, *self.shadowed)
        return tuple(name for name in Tasks(self.dataset.store).told if name not in taken)

    def _preprocessed(self) -> list[str]:
        """Return the fields that preprocess functions added or changed."""
        return [name for name in self.dataset.manifest.preprocessed if name in self.behind]

    def unread(self, fields: Chosen | None, chosen: Sequence[str]) -> list[str]:
        """Return observed fields left out of batches: the dataset has no ``observation`` and ``fields`` names none."""
        seen = [name for name in self.behind if name.partition("/")[0] not in ("action", "next")]
        return seen if ... in items(fields) and set(seen).isdisjoint(chosen) else []

    def has(self, name: str) -> bool:
        """Return whether a field of exactly this name is stored or can be computed."""
        if name == STEP_MASK or name.removeprefix(f"{MASK}/") in self._episodes.names:
            return name in self._computed()
        if name.startswith(f"{MASK}/"):  # of `Offsets`
            return any(n in self.behind for n in self.below(name.removeprefix(f"{MASK}/")))
        return name in self.behind or name in self._computed()

    def _made(self, extra: Extra) -> list[str]:
        """Make the columns of an object, and return their names."""
        made = extra.columns(self)
        taken = [name for name in made if name in self.behind or name in self._computed()]
        if taken:
            raise InvalidArgument(f"fields: {extra!r} makes {taken[0]!r}, a field already.", hint="another name")
        self._extra |= made
        return list(made)

    def _added(self, chosen: Sequence[str]) -> list[str]:
        """Return the columns that the sampler, the window and the data add."""
        all_steps = self.window.whole
        unknown = self.table.steps if all_steps else self.table.transitions
        some_unknown = bool((unknown >= self.table.observed).any())
        some_after = any(name in self.behind and self._after(name) for name in chosen)
        of_episodes = [n for n in chosen if n in self._episodes.names and n not in self.behind]
        masks = [f"{MASK}/{n}" for n in of_episodes if self.pool.live or not self._episodes.is_complete(n)]
        return [
            *self._summed,
            *([OBSERVED] if (some_unknown or self.pool.live) and some_after else []),
            *(STEP_MASK if name == MASK and masks else name for name in self._drawn),
            *masks,
            *(mask for mask, of in self._grid_masks.items() if not set(of).isdisjoint(chosen)),
        ]

    @cached_property
    def _grid_masks(self) -> dict[str, list[str]]:
        """The masks of `Offsets`, and the fields that each is for.

        One for each name of the offsets, and for the next observation that follows one; where the fields below a name
        do not have the same rows, one for each of these.
        """
        groups: dict[str, list[str]] = {}
        for name in (*self.behind, DONE, *self._told):
            if self._grid(name) is not None:
                groups.setdefault(str(self._named(name)), []).append(name)
        masks: dict[str, list[str]] = {}
        for key, names in groups.items():
            alike = len({self._reach(name) for name in names}) == 1
            inside = any(other.startswith(f"{key}/") for other in groups)
            masks |= {f"{MASK}/{key}": names} if alike and not inside else {f"{MASK}/{n}": [n] for n in names}
        return masks

    def _reach(self, name: str) -> tuple[object, ...]:
        grid = self._grid(name)
        return () if grid is None else (grid.offsets, grid.limit is self.table.observed)

    def below(self, name: str) -> list[str]:
        """Return ``name`` itself, or all fields nested below it."""
        if name in self.behind or name in self._computed():
            return [name]
        known = self.behind if name == "next" else [*self.behind, *self._beside_names]
        below = [n for n in known if n.startswith(f"{name}/")]
        return [*below, DONE] if name == "next" and below else below

    def expand(self, name: str, *, rows: bool = False) -> list[str]:
        """Return `below`, or raise where it is empty; with ``rows``, suggest only fields that are read from rows.

        Raises
        ------
        UnknownField, NoReward, LoaderError
            There is no such field.
        """
        found = self.below(name)
        if found:
            return found
        if any(is_below(n, name) for n in self.left_out):
            raise LoaderError(
                f'{type(self.window).__name__}(anchors="steps") gives no {name}: steps whose next observation is not '
                "known are drawn too.",
                hint='anchors="transitions"',
            )
        if name in (REWARD, "reward", "previous/reward") and REWARD not in self.dataset.schema:
            raise no_reward(self.dataset)
        raise self._unknown(name, self._offered(name, rows))

    def _check_grids(self, names: Iterable[str]) -> None:
        """Refuse offsets of columns that are computed for step t alone."""
        for name in names:
            if self._grid(name) is None:
                leaf = name.rpartition("/")[2]
                instead = [n for n in (leaf, f"next/{leaf}") if self._named(n) is not None or n in self.behind]
                raise InvalidArgument(
                    f'Offsets: "{name}" is given at step t alone.',
                    hint=f'offsets of "{instead[0]}"' if instead else f"leave {name} out of the offsets",
                )

    def _offered(self, name: str, rows: bool) -> list[str]:
        """Return the names that could be meant by ``name``."""
        if rows:
            return [*self.behind, *(n for n in self._computed() if n == DONE or n in self._told)]
        group = name.partition("/")[0]
        hidden = {MASK, episode_columns.EPISODE} - {group}
        computed = [n for n in self._computed() if n.partition("/")[0] not in hidden or "/" not in n]
        return [*self.behind, *computed]

    def _unknown(self, name: str, offered: Iterable[str]) -> UnknownField:
        known = sorted(offered)
        groups = {"/".join(parts[:i]) for parts in (n.split("/") for n in self.behind) for i in range(1, len(parts))}
        meant = [n for n in known if n not in ROOT_FLAGS]  # these say nothing
        shallow_last = sorted(meant, key=lambda n: (n.count("/"), n), reverse=True)
        leaves = {n.rsplit("/", 1)[-1]: n for n in shallow_last}
        leaf = name.rsplit("/", 1)[-1]
        close = (
            [n for n in meant if len(leaf) > 2 and n.startswith(name)]
            or get_close_matches(name, [*meant, *sorted(groups)], 1, 0.75)
            or [leaves[n] for n in get_close_matches(leaf, leaves, 1, 0.6)]
        )
        made = get_close_matches(name, _MADE, 1, 0.75)
        did_you_mean = f' Did you mean "{close[0]}"?' if close and not made else ""
        return UnknownField(
            f'no field "{name}" in {self.dataset.id}.{did_you_mean}  Fields: {", ".join(known)}',
            hint=f"fields=[..., {_MADE[made[0]]}] works it out" if made else None,
        )

    def _computed(self) -> dict[str, Callable[[], BatchColumn]]:
        table = self.table
        found: dict[str, Callable[[], BatchColumn]] = dict(_PLAIN)
        found |= {
            "episode": lambda: columns.of_episode(table.number),
            "index": lambda: columns.index(table.index),
            PROBABILITY: lambda: columns.probability(self.floats),
            OBSERVED: lambda: columns.observed(self._mask),
        }
        found |= {name: partial(self._of_extra, name) for name in self._extra}
        found |= self._neighbours()
        if "source" in self.dataset.episodes:
            found["source"] = lambda: columns.of_episode(self.dataset.episodes["source"].take(table.number))
        if all(name in self.dataset.schema for name in FLAGS):
            found[DONE] = self._done
        found |= {name: partial(self._made_of_texts, name) for name in self._told}
        if self.window.masked:
            found |= {MASK: columns.mask, STEP_MASK: columns.mask}
        for name in self._episodes.names:
            found[name] = partial(self._episodes.column, name)
            found[f"{MASK}/{name}"] = partial(self._episodes.mask, name)
        if isinstance(self.window, Transition) and self.n_step > 1:
            gamma = self.window.gamma
            found |= {DISCOUNT: lambda: columns.discount(gamma, self.n_step, self._sum_dtype), STEPS: columns.span}
        found |= {mask: partial(self._grid_mask, of[0]) for mask, of in self._grid_masks.items()}
        if WEIGHT in self.gives:
            found |= {WEIGHT: lambda: columns.weight(self.floats), WINDOW: lambda: columns.window(self.pool)}
        return found

    def _of_extra(self, name: str) -> BatchColumn:
        """Return a column of an object; values of a field are read where that is, from packed rows if there are any."""
        column = self._extra[name]
        rows = None if column.rows is None else self._rows.get(column.like)
        return column if rows is None else columns.read_from(column, rows, self.floats)

    def _made_of_texts(self, name: str) -> BatchColumn:
        return self._episodes.told(name, self._grid(name), self._mask)

    def _neighbours(self) -> dict[str, Callable[[], BatchColumn]]:
        """Return the columns of the previous and of the next step."""
        return {shown: partial(self._beside, *of) for shown, of in self._beside_names.items()}

    @cached_property
    def _beside_names(self) -> dict[str, tuple[str, int]]:
        """Names of these columns, each with its field and its distance in steps."""
        sides = (("next", 1, "action"), ("previous", -1, "action"), ("previous", -1, REWARD))
        named = {
            f"{side}/{name.removeprefix('next/')}": (name, distance)
            for side, distance, field in sides
            for name in self.dataset.schema
            if is_below(name, field)
        }
        return {shown: of for shown, of in named.items() if shown not in self.dataset.schema}

    def _beside(self, name: str, distance: int) -> BatchColumn:
        rows, axis, zeroed = self.source(name), self.dataset.schema[name].is_column, self.window.zeroed
        return columns.neighbour(rows, self.floats, distance, axis=axis, zeroed=zeroed, like=name)

    def _done(self) -> BatchColumn:
        terminated, truncated = (self.rows(name) for name in FLAGS)
        return columns.done(terminated, truncated, self._grid(DONE), late=self.n_step > 1, mask=self._mask)

    def _grid_mask(self, name: str) -> BatchColumn:
        grid = self._grid(name)
        assert grid is not None
        return columns.grid_mask(grid)

    @property
    def _mask(self) -> int:
        """The bits of places where stored fields are zero: outside the window, or with offsets outside the episode."""
        return (OF_PLACE if isinstance(self.window, Offsets) else OF_WINDOW) if self.window.zeroed else 0

    # -- columns

    @property
    def budget(self) -> int:
        """Bytes of private memory that a column may take."""
        return memory.budget(self._allowed)[0]

    def rows(self, name: str) -> ColumnRows:
        """Return all rows of a stored array field."""
        if name not in self._rows:
            self._rows[name] = memory.open_rows(self.dataset, name, sparing=self._sparing)
        return self._rows[name]

    @cached_property
    def _sparing(self) -> bool:
        return memory.exceeds_memory(self.dataset)

    def source(self, name: str) -> ColumnRows | Decoding:
        """Return the rows of a stored field, or how it is decoded."""
        return self.rows(name) if self.dataset.schema[name].kind == "array" else Decoding(self.dataset, name)

    def pack(self, names: Iterable[str]) -> str:
        """Read the array fields behind these columns from packed rows, where that is faster; return where these are."""
        stored = self.packable(names)
        if self.n_step > 1 and np.dtype(self.dataset.schema[REWARD].dtype) != self._packed_dtype(REWARD):
            stored = [name for name in stored if name != REWARD]  # sums are of the archive's own values
        pack = grown.pack if self.dataset.store.table.segment_rows else blocks.pack
        packed, where = pack(self.dataset, {n: self._packed_dtype(n) for n in stored}, self.budget)
        self._rows |= packed
        return where

    def centre(self, names: Iterable[str]) -> None:
        """Keep the archive's values of the fields behind these columns: they are centred before they are narrowed."""
        self._centred |= set(self.stored(names))

    def packable(self, names: Iterable[str]) -> list[str]:
        """Return the array fields behind these columns."""
        return [n for n in self.stored(names) if self.dataset.schema[n].kind == "array"]

    def _packed_dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a field in packed rows: floats have the loader's working dtype."""
        kind = np.dtype(self.dataset.schema[name].dtype)
        narrows = self.floats is not None and kind.kind == "f" and name not in self._centred
        return np.dtype(self.floats) if narrows else kind

    @property
    def _sum_dtype(self) -> np.dtype[Any]:
        return columns.sum_dtype(np.dtype(self.dataset.schema[REWARD].dtype), self.floats)

    def column(self, name: str, transform: Callable[[Array], Array] | None) -> BatchColumn:
        """Make the column ``name``; ``transform`` applies to each reward of an n-step sum."""
        if name not in self.behind:
            return self._computed()[name]()
        f = self.dataset.schema[self.behind[name]]
        after = self._after(name)
        late = self.n_step > 1 and (f.placement == "next" or after)
        grid, axis = self._grid(name), f.is_column
        if grid is not None:
            return columns.stacked(self.source(f.name), self.floats, grid, axis=axis, zeroed=self.window.zeroed)
        if f.kind != "array":
            return columns.decoded(self.dataset, f.name, late=late, shift=int(after), mask=self._mask)
        if name == REWARD and isinstance(self.window, Transition) and self.n_step > 1:
            gamma, limit = self.window.gamma, self.table.transitions
            return columns.reward_sum(self.rows(name), transform, gamma, self.n_step, limit, self._sum_dtype)
        return columns.field(self.rows(f.name), self.floats, late=late, shift=int(after), axis=axis, mask=self._mask)

    def _named(self, name: str) -> str | None:
        """Return the key of `Offsets` that a field read from rows belongs to; None without one."""
        read = (
            name in self.behind or (name == DONE and all(flag in self.behind for flag in FLAGS)) or name in self._told
        )
        return self.window.named(name) if isinstance(self.window, Offsets) and read else None

    def _grid(self, name: str) -> Grid | None:
        """Return a field's offsets in rows, which can reach a final observation that is recorded; None without any."""
        if self._named(name) is None:
            return None
        assert isinstance(self.window, Offsets)
        later, stored = (0, "") if name not in self.behind else (int(self._after(name)), self.behind[name])
        offsets = tuple(x + later for x in self.window.of(name) or ())
        observed = max(offsets) > 0 and stored != "" and self.dataset.schema[stored].placement == "both"
        return Grid(offsets, self.table.observed if observed else self.table.steps)

    def stored(self, names: Iterable[str]) -> list[str]:
        """Return the stored fields that are read for ``names``."""
        names = list(names)
        used = [self.behind[n] for n in names if n in self.behind]
        used += self.like(names).values()
        flags = FLAGS if DONE in names or self.n_step > 1 else ()
        return list(dict.fromkeys([*used, *flags]))

    def like(self, names: Iterable[str]) -> dict[str, str]:
        """Map computed columns that hold values of a field to that field: its transforms apply to them, too."""
        known = {name: field for name, (field, _) in self._beside_names.items()}
        known |= {name: c.like for name, c in self._extra.items() if c.like}
        return {name: known[name] for name in names if name in known}


def no_reward(dataset: Dataset) -> NoReward:
    """Return the error for a dataset without ``next/reward``."""
    return other_rewards(dataset.id, dataset.schema) or NoReward(
        f"{dataset.id} has no reward.",
        hint="leave it out of fields=, draw goals (fields=[..., Goals(...)]), or make rewards of goals:"
        " rlds preprocess ID --fn reward_from_goal",
    )


def items(fields: Chosen | None) -> Sequence[Any]:
    """Return the items of a loader's ``fields``; None is the usual fields, a lone item a list of one."""
    if fields is None:
        return [...]
    return [fields] if isinstance(fields, str | Extra) else list(fields)


def listed(what: str, names: Sequence[Any]) -> list[str]:
    """Return names as a list of text; a lone name is a list of one."""
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str | tuple):
            raise InvalidArgument(f"{what}={name!r}: a field's name is needed, as text or a tuple.")
    return [join_name(name) for name in listed]
