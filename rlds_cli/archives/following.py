"""Forms of episodes in which the next observation of a step is that of the row below."""

from __future__ import annotations

from rlds_cli.base.text import is_below
from rlds_cli.dataset import Dataset
from rlds_cli.errors import UnknownField


def require_rows_that_follow(ds: Dataset, whose: str) -> None:
    """Refuse a dataset with a column of next observations, for forms that take them from the row below.

    Raises
    ------
    UnknownField
        The message names the columns; ``whose`` form it is, as in "Minari's".
    """
    own = [n for n in ds.schema if is_below(n, "next/observation")]
    if own:
        raise UnknownField(
            f"{ds.manifest.id} stores {', '.join(own)}: its next observations are not the observations of the rows"
            f" below, which {whose} episodes would take them for.",
            hint='ds.episode(k)["next", "observation"], ds the dataset of rlds',
        )
