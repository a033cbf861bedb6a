"""The families and libraries whose files are read here, in which datasets are written, or whose code has a drop-in.

A line is all that a family or library needs besides its module or folder here. In the folder of a library are
``read.py``, the reader of its files; ``signs.py``, by which they are recognised; ``write.py``, datasets in its formats
on disk; ``dropin.py``, its functions and objects, as `rlds_cli.interop.NAME`; and ``names.py``, its names of files and
columns. All but one may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """What there is of a family or library.

    Attributes
    ----------
    reader : str
        The module below `archives` that reads its files; empty if that of another family does.
    signs : str
        The module below `archives` that recognises its files, where the reader takes long to import.
    skips : bool
        The reader leaves damaged files out as it plans; others stop at the first one.
    bundles : bool
        The reader reads directories that are one file, see `base.files.bundles`.
    formats : mapping of str to str
        Names that ``rlds export --to`` takes, and their classes: ``MODULE:CLASS``, below `archives`.
    dropin : bool
    """

    reader: str = ""
    signs: str = ""
    skips: bool = False
    bundles: bool = False
    formats: Mapping[str, str] = field(default_factory=dict)
    dropin: bool = False


# Readers are asked in this order, and the first one that recognises a file reads it. Those that look at few groups of a
# file come before those that list its columns, of which there may be thousands; that of any table is the last one.
LIBRARIES: Mapping[str, Library] = {
    "torchrl": Library(
        reader="torchrl.read",
        signs="torchrl.signs",
        skips=True,
        formats={"tensordict": "torchrl.write:TensorDict"},
        dropin=True,
    ),
    "minari": Library(reader="minari.read", skips=True, formats={"minari": "minari.write:Minari"}, dropin=True),
    "roboset": Library(reader="roboset"),
    "robomimic": Library(reader="robomimic.read", formats={"robomimic": "robomimic.write:Robomimic"}),
    "maniskill": Library(reader="maniskill"),
    "d3rlpy": Library(reader="d3rlpy.read", dropin=True),
    "d4rl": Library(reader="d4rl.read", formats={"d4rl": "d4rl.write:D4RL"}, dropin=True),
    "openx": Library(reader="tfds.read", skips=True, formats={"tfds": "tfds.write:Tfds"}),
    "rlu_atari": Library(reader="rlu_atari", skips=True),
    "vd4rl": Library(reader="vd4rl"),
    "exorl": Library(reader="exorl"),
    "neorl2": Library(reader="neorl2"),
    "atari_dqn": Library(reader="atari_dqn", skips=True),
    "gen_dgrl": Library(reader="gen_dgrl"),
    "ogbench": Library(reader="ogbench"),
    "lerobot": Library(
        reader="lerobot.read",
        skips=True,
        formats={"lerobot": "lerobot.write:LeRobot3", "lerobot2.1": "lerobot.write:LeRobot21"},
    ),
    "openml": Library(reader="openml", skips=True),
    "recordings": Library(reader="recordings", skips=True),
    "mcap": Library(formats={"mcap": "mcap.write:Mcap"}),
    "rerun": Library(formats={"rerun": "rerun.write:Rerun"}),
    "zarr_replay_buffer": Library(
        reader="zarr_replay_buffer.read",
        bundles=True,
        formats={"zarr-replay-buffer": "zarr_replay_buffer.write:ZarrReplayBuffer"},
    ),
    "plain": Library(reader="plain", skips=True, bundles=True),
}
READERS = tuple(name for name, has in LIBRARIES.items() if has.reader)
FORMATS = dict(sorted(item for has in LIBRARIES.values() for item in has.formats.items()))
DROPINS = tuple(name for name, has in LIBRARIES.items() if has.dropin)
