"""Measures that need all episodes at once, or what a manifest states: computed from what is stored, and not kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rlds_cli.base.array_types import Array
from rlds_cli.look.measures import cameras, siblings
from rlds_cli.look.measures.measuring import RETURN, SUCCESS, StoredMeasures
from rlds_cli.look.measures.vectors import SIGNATURE
from rlds_cli.ted import REWARD

_THOUSANDS = 3  # the power of ten between units of time: seconds, milliseconds, microseconds, nanoseconds


class ComparedMeasures(StoredMeasures):
    """All measures of the episodes of a dataset; see `asking.Measures`."""

    def values(self, name: str) -> Array:
        """Return a measure of all episodes of the version [episodes], or of each element of them [episodes, n]."""
        return self._of_all[name]() if name in self._of_all else super().values(name)

    @property
    def _of_all(self) -> Mapping[str, Callable[[], Array]]:
        """The measures that are computed here: functions by name."""
        return {
            "quality_rate_error": self._rate_error,
            "quality_task_siblings": lambda: self._near.same_task,
            "quality_twin_distance": lambda: self._near.distance,
            "quality_task_empty": lambda: np.asarray(self.tasks < 0, np.float64),
            "quality_success_mismatch": self._mismatch,
            "quality_return": lambda: np.asarray(self.store.episodes[RETURN], np.float64),
            "quality_length": lambda: np.asarray(self.store.episodes["length"], np.float64),
            "quality_camera_swap": self._swap,
        }

    def _rate_error(self) -> Array:
        """Return by which share rates differ from the stated one; NaN for stamps that only count steps.

        Stamps in milliseconds or microseconds are told by their rate: it is nearest to the stated one then.
        """
        rate = self._stored("quality_rate_error", "quality_rate", "time")
        stated = self._stated_rate or np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = 10.0 ** (_THOUSANDS * np.round(np.log10(stated / rate) / _THOUSANDS))
            return np.asarray(np.where((rate == 1) & (stated != 1), np.nan, np.abs(rate * unit / stated - 1)))

    def _mismatch(self) -> Array:
        """Return whether success contradicts the last reward; NaN where last rewards do not tell it.

        Success is the column of this name or, without one, what a field of flags has at the last step. Last rewards
        tell it if they have two values in the dataset, of which the greater one is that of success, or a single one
        that is not 0: where all are 0, rewards are not recorded.
        """
        success = self._successes()
        last = np.asarray(self.rows.at(REWARD, self.rows.final - 1), np.float64).reshape(len(success), -1)
        values = np.unique(last)
        if last.shape[1] != 1 or not 0 < len(values) <= 2 or not values.any():
            return np.full(len(success), np.nan)
        paid = last[:, 0] == values[1] if len(values) == 2 else last[:, 0] > 0
        pairs = zip(success, paid.tolist(), strict=True)
        return np.array([np.nan if flag is None else float(bool(flag) != given) for flag, given in pairs])

    def _successes(self) -> Sequence[Any]:
        """Return whether each episode succeeded; None where nothing says so."""
        if SUCCESS in self.store.own_columns or self.roles.success is None:
            return self.store.own_column(SUCCESS).scalars()
        return np.asarray(self.rows.at(self.roles.success, self.rows.final - 1)).reshape(-1).tolist()

    def _swap(self) -> Array:
        return cameras.swapped(self.looks, len(self.roles.cameras))

    @cached_property
    def _near(self) -> siblings.Near:
        return siblings.near(self.signatures, self.tasks)

    @property
    def signatures(self) -> Array:
        """What tells motions apart [episodes, n]: the states at some moments of each episode."""
        return self._stored("quality_twin_distance", SIGNATURE, "motion")

    @property
    def looks(self) -> Array:
        """What tells cameras apart [episodes, cameras * parts]: the mean brightness of parts of the picture."""
        return self._stored("quality_camera_swap", cameras.LOOK, "camera")
