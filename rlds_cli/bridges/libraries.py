"""The libraries that have a folder here: the formats that `write` of it knows, and whether it has a `dropin`.

A folder has ``write.py`` (datasets in the library's formats on disk) or ``dropin.py`` (its functions and objects, as
`rlds_cli.interop.NAME`), or both. Files of a library are read by its family in `rlds_cli.archives`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library: ``formats`` maps names on the command line to classes of its module ``write``."""

    formats: Mapping[str, str] = field(default_factory=dict)
    dropin: bool = False


LIBRARIES = {
    "minari": Library(formats={"minari": "Minari"}, dropin=True),
    "d4rl": Library(formats={"d4rl": "D4RL"}, dropin=True),
    "lerobot": Library(formats={"lerobot": "LeRobot3", "lerobot2.1": "LeRobot21"}),
    "tfds": Library(formats={"tfds": "Tfds"}),
    "robomimic": Library(formats={"robomimic": "Robomimic"}),
    "torchrl": Library(formats={"tensordict": "TensorDict"}, dropin=True),
    "d3rlpy": Library(dropin=True),
}
