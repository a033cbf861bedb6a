"""Which fields a batch holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rlds_cli.batch import ROOT_FLAGS
from rlds_cli.errors import InvalidArgument, LoaderError, NoReward, UnknownField
from rlds_cli.loader import columns
from rlds_cli.loader.columns import Column, Computed, Decoded, RewardSum, Stored
from rlds_cli.loader.places import Rows
from rlds_cli.loader.table import Table
from rlds_cli.loader.windows import Anchors, Slice, Transition, Window
from rlds_cli.ted import FLAGS, REWARD, Array, join_name

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset

Names = Sequence[str | tuple[str, ...]]

DONE, OBSERVED, DISCOUNT, MASK = "next/done", "next/observed", "next/discount", "mask"
NEXT_OBSERVATION = "next/observation"
USUAL = ("observation", "action", NEXT_OBSERVATION, REWARD, DONE, *FLAGS)

_PLAIN: dict[str, Callable[[], Computed]] = {
    "step": columns.step,
    "episode": columns.episode,
    "index": columns.index,
    OBSERVED: columns.observed,
    **dict.fromkeys(ROOT_FLAGS, columns.root_flag),
}


class Fields:
    """The fields that a loader can give, and the columns behind those that were asked for.

    Parameters
    ----------
    dataset : Dataset
    table : Table
        The episodes drawn from.
    window : Window
    anchors : {"transitions", "steps"}
    """

    def __init__(self, dataset: Dataset, table: Table, window: Window, anchors: Anchors) -> None:
        self.dataset, self.table, self.window = dataset, table, window
        schema = dataset.schema
        self.behind = {name: name for name in schema}
        self.behind |= {
            f"next/{f.name}": f.name
            for f in schema.values()
            if f.placement == "both" and f"next/{f.name}" not in schema
        }
        self.left_out = [n for n in self.behind if anchors == "steps" and self._needs_next(n)]
        for name in self.left_out:
            del self.behind[name]
        self._rows: dict[str, Rows] = {}
        self.n_step = window.n_step if isinstance(window, Transition) else 1
        if self.n_step > 1 and REWARD not in schema:
            raise no_reward(dataset)

    def _needs_next(self, name: str) -> bool:
        return self._after(name) or name == NEXT_OBSERVATION or name.startswith(f"{NEXT_OBSERVATION}/")

    def _after(self, name: str) -> bool:
        """Whether ``name`` is the row after of a field placed ``both``."""
        return self.behind[name] != name

    # -- names

    def choose(self, fields: Names | None, extra: Names) -> list[str]:
        """Names of the columns of a batch, in order.

        Raises
        ------
        UnknownField, NoReward
            A name that the dataset does not have.
        LoaderError
            A next observation with ``anchors="steps"``.
        """
        if fields is None:
            chosen = [name for usual in USUAL for name in self._below(usual)]
        else:
            chosen = [name for key in _listed("fields", fields) for name in self._expand(key)]
        chosen += [name for key in _listed("extra", extra) for name in self._expand(key)]
        if not chosen:
            raise InvalidArgument("A batch of no fields.", hint="fields=None gives the usual ones")
        return list(dict.fromkeys([*chosen, *self._added(chosen)]))

    def _added(self, chosen: Iterable[str]) -> list[str]:
        """What follows from the window and the data."""
        unknown = self.table.steps if self.window.whole else self.table.transitions
        some_unknown = bool((unknown >= self.table.observed).any())
        some_after = any(name in self.behind and self._after(name) for name in chosen)
        return [
            *([DISCOUNT] if self.n_step > 1 else []),
            *([OBSERVED] if some_unknown and some_after else []),
            *([MASK] if isinstance(self.window, Slice) else []),
        ]

    def _below(self, name: str) -> list[str]:
        """``name`` itself, or all fields nested below it."""
        if name in self.behind or name in self._computed():
            return [name]
        stored = [n for n in self.behind if n.startswith(f"{name}/")]
        return [*stored, DONE] if name == "next" and stored else stored

    def _expand(self, name: str) -> list[str]:
        found = self._below(name)
        if found:
            return found
        if any(n == name or n.startswith(f"{name}/") for n in self.left_out):
            raise LoaderError(
                f'anchors="steps" gives no {name}: steps whose next observation is not known are drawn too.',
                hint='anchors="transitions"',
            )
        if name in (REWARD, "reward"):
            raise no_reward(self.dataset)
        raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownField:
        known = sorted([*self.behind, *self._computed()])
        leaves = {n.rsplit("/", 1)[-1]: n for n in reversed(known)}
        leaf = name.rsplit("/", 1)[-1]
        close = get_close_matches(name, known, 1, 0.75) or [leaves[n] for n in get_close_matches(leaf, leaves, 1, 0.6)]
        did_you_mean = f' Did you mean "{close[0]}"?' if close else ""
        return UnknownField(f'no field "{name}" in {self.dataset.id}.{did_you_mean}  Fields: {", ".join(known)}')

    def _computed(self) -> dict[str, Callable[[], Computed]]:
        found = dict(_PLAIN)
        if all(name in self.dataset.schema for name in FLAGS):
            found[DONE] = lambda: columns.done(*(self.rows(name) for name in FLAGS))
        if isinstance(self.window, Slice):
            found[MASK] = columns.mask
        if isinstance(self.window, Transition) and self.n_step > 1:
            gamma = self.window.gamma
            found[DISCOUNT] = lambda: columns.discount(gamma, self.n_step, self.rows(REWARD))
        return found

    # -- columns

    def rows(self, name: str) -> Rows:
        """All rows of a stored array field."""
        if name not in self._rows:
            self._rows[name] = Rows(self.dataset.column(name))
        return self._rows[name]

    def column(self, name: str, transform: Callable[[Array], Array]) -> Column:
        """The column called ``name``; ``transform`` is for rewards that are summed, one step at a time."""
        if name not in self.behind:
            return self._computed()[name]()
        f = self.dataset.schema[self.behind[name]]
        after = self._after(name)
        late = f.placement == "next" or after
        if f.kind != "array":
            return Decoded(self.dataset, f.name, late, int(after))
        if name == REWARD and isinstance(self.window, Transition) and self.n_step > 1:
            return RewardSum(self.rows(name), self.window.gamma, transform)
        flag = name in (REWARD, *FLAGS) and f.shape == ()
        return Stored(self.rows(f.name), late, int(after), flag)

    def stored(self, names: Iterable[str]) -> list[str]:
        """The fields of the store that are read for ``names``."""
        used = [self.behind[n] for n in names if n in self.behind]
        flags = FLAGS if DONE in names or self.n_step > 1 else ()
        return list(dict.fromkeys([*used, *flags]))


def no_reward(dataset: Dataset) -> NoReward:
    """What to raise where rewards are asked of a dataset without rewards."""
    return NoReward(
        f"{dataset.id} has no reward.",
        hint="leave it out of fields=, or add one: rlds preprocess, with a function that sets next/reward",
    )


def _listed(what: str, names: Names) -> list[str]:
    """A lone name counts as a list of one."""
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str | tuple):
            raise InvalidArgument(f"{what}={name!r}: a field's name is needed, as text or a tuple.")
    return [join_name(name) for name in listed]
