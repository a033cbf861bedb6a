"""Measures of episodes: numbers that tell the bad ones, kept beside a dataset, and findings from them.

>>> from rlds_cli import measures
>>> measures.Measures(ds).column("quality_idle_share")  # doctest: +SKIP

`catalogue` lists the measures, `roles` says what fields are to them. `blocks`, `vectors` and `cameras` compute them,
`siblings` compares motions. `results` are the files of a home, `measuring` reads and fills them, `found` has the
findings. `decisions` say what was left out and why, `suppressing` keeps the reasons of suppressed findings, `asking` is
what users see of all that, and `checking` is ``rlds check``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.look.measures.asking import Measures as Measures
    from rlds_cli.look.measures.catalogue import MEASURES as MEASURES
    from rlds_cli.look.measures.catalogue import PREFIX as PREFIX
    from rlds_cli.look.measures.catalogue import Measure as Measure
    from rlds_cli.look.measures.measuring import Cost as Cost

__all__ = ["MEASURES", "PREFIX", "Cost", "Measure", "Measures"]

lazy(__name__, {"catalogue": "MEASURES PREFIX Measure", "asking": "Measures", "measuring": "Cost"})
