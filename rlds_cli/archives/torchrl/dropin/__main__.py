"""Run a script for TorchRL's datasets on datasets of rlds: only the id in its arguments or its text changes.

python -m rlds_cli.interop.torchrl td3_bc.py replay_buffer.dataset=rlds:d4rl/halfcheetah-medium-v2

In the script, ``D4RLExperienceReplay("rlds:ID", ...)`` and all other dataset classes of TorchRL make a
`RldsExperienceReplay`; every other id is left to them.
"""

from __future__ import annotations

import importlib
import inspect
import runpy
import sys
from pathlib import Path
from typing import Any

from torchrl.data import datasets

from rlds_cli.archives.torchrl.dropin import PREFIX, RldsExperienceReplay

MODULES = {
    "atari_dqn": "AtariDQNExperienceReplay",
    "d4rl": "D4RLExperienceReplay",
    "gen_dgrl": "GenDGRLExperienceReplay",
    "lerobot": "LeRobotExperienceReplay",
    "minari_data": "MinariExperienceReplay",
    "openml": "OpenMLExperienceReplay",
    "openx": "OpenXExperienceReplay",
    "roboset": "RobosetExperienceReplay",
    "vd4rl": "VD4RLExperienceReplay",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "D4RLExperienceReplay": {"root_reward": True, "next_info": True},  # as these have them
    "OpenMLExperienceReplay": {"replacement": False},
    "VD4RLExperienceReplay": {"totensor": True},
}


def accept_ids() -> None:
    """Make TorchRL's dataset classes take ids that begin with ``rlds:``, in this process."""
    for module, name in MODULES.items():
        home = importlib.import_module(f"{datasets.__name__}.{module}")
        accepting = _accepting(getattr(home, name))
        setattr(home, name, accepting)
        setattr(datasets, name, accepting)


def _accepting(original: Any) -> Any:
    _, first, *_ = inspect.signature(original.__init__).parameters  # dataset_id, repo_id or name

    def new(cls: Any, *args: Any, **more: Any) -> Any:
        dataset_id, *rest = args or (more.get(first),)
        if isinstance(dataset_id, str) and dataset_id.startswith(f"{PREFIX}:"):
            more = _DEFAULTS.get(original.__name__, {}) | {name: x for name, x in more.items() if name != first}
            return RldsExperienceReplay(dataset_id.removeprefix(f"{PREFIX}:"), *rest, **more)
        return original.__new__(cls)

    return type(original)(original.__name__, (original,), {"__new__": new, "__doc__": original.__doc__})


def main() -> None:
    """Run the script named by the first argument, with the others."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m rlds_cli.interop.torchrl SCRIPT [ARGUMENT ...]")
    accept_ids()
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
