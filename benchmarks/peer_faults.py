"""What TorchRL's dataset classes make of archives whose content is known, beside what rlds makes of them.

    python benchmarks/peer_faults.py [minari|d4rl|roboset|vd4rl|gen_dgrl]...

The archives are tiny and their numbers speak for themselves: observation t of episode e is 100 e + t, action t is
100 e + t + 0.5. The hub is a directory on this disk; nothing else of TorchRL is replaced. It needs the extra "bench".
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np

import rlds_cli
from rlds_cli.errors import RldsError
from rlds_cli.make.importing import import_files

SAMPLES = Path(rlds_cli.__file__).parent / "samples"
HUB = """
import os
from pathlib import Path
from types import SimpleNamespace
ROOT = Path(os.environ["HUB_OF_ONE_DIRECTORY"])
class HfApi:
    def dataset_info(self, repo):
        files = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file())
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=f) for f in files])
def hf_hub_download(repo, subfolder, filename, **_):
    return str(ROOT / subfolder / filename)
"""


def say(what: str, *, truth: Any, torchrl: Any, rlds: Any) -> None:
    """One line: is the peer right?"""
    print(f"  {what}\n      archive {truth!s:20} torchrl {torchrl!s:20} rlds {rlds!s}")


def minari(work: Path) -> None:
    """Everything is zero."""
    from torchrl.data.datasets import MinariExperienceReplay

    target = work / "cartpole" / "medium-v0"
    target.parent.mkdir(parents=True)
    target.symlink_to(SAMPLES / "cartpole-minari")
    with mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(work)):
        theirs = MinariExperienceReplay(
            "cartpole/medium-v0", batch_size=1, root=work / "torchrl", load_from_local_minari=True
        )[:]
    ours = rlds_cli.download("sample/cartpole-minari", home=work / "rlds")
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        rewards = sum(float(f[e]["rewards"][:].sum()) for e in f)
        size = sum(float(np.abs(f[e]["observations"][:-1], dtype=np.float64).sum()) for e in f)
    said = ours.episodes["total_reward"].sum()
    say("sum of rewards", truth=rewards, torchrl=float(theirs["next", "reward"].sum()), rlds=said)
    total = np.abs(ours[:]["observation"], dtype=np.float64).sum()
    shown = round(float(theirs["observation"].abs().sum()), 2)
    say("sum of |observation|", truth=round(size, 2), torchrl=shown, rlds=round(float(total), 2))


def d4rl(work: Path) -> None:
    """The last row is dropped, final observations that the file has become zeros, flags slip into the next episode."""
    from torchrl.data.datasets import D4RLExperienceReplay
    from torchrl.data.datasets import d4rl as module

    file = SAMPLES / "pendulum-d4rl.hdf5"
    with mock.patch.dict(module.D4RL_DATASETS, {"pendulum": file.as_uri()}):
        theirs = D4RLExperienceReplay("pendulum", batch_size=1, root=work / "torchrl", direct_download=True)[:]
    ours = rlds_cli.download("sample/pendulum-d4rl", home=work / "rlds")
    with h5py.File(file) as f:
        rows, final = len(f["actions"]), f["next_observations"][199]
    say("steps", truth=rows, torchrl=len(theirs), rlds=ours.num_steps)
    say(
        "next observation of step 199, where episode 0 ends",
        truth=final.round(2),
        torchrl=theirs["next", "observation"][199].numpy(),
        rlds=ours[199]["next", "observation"].round(2),
    )
    say(
        "is the first step of episode 1 done before anything happens?", truth=False,
        torchrl=bool(theirs["done"][200]), rlds=False,
    )  # fmt: skip


def roboset(work: Path) -> None:
    """Trials of two files with one number become one trajectory; the last next observation of a trial is zero."""
    from torchrl.data.datasets import RobosetExperienceReplay

    name = "DAPG(expert)/door_v2d-v1"
    lengths = {0: 5, 1: 6, 2: 7, 10: 8}
    with _hub(work) as hub:
        for seed in (1, 2):
            (hub / name).mkdir(parents=True, exist_ok=True)
            with h5py.File(hub / name / f"seed{seed}.h5", "w") as f:
                for trial, length in lengths.items():
                    g, t = f.create_group(f"Trial{trial}"), np.arange(length, dtype=np.float64)
                    g["observations"], g["actions"] = 100.0 * trial + t[:, None], 100.0 * trial + t[:, None] + 0.5
                    g["rewards"], g["done"], g["time"] = t, np.zeros(length, bool), t
                    g["env_infos/solved"] = np.zeros(length, bool)
        with mock.patch.object(RobosetExperienceReplay, "available_datasets", [name]):
            theirs = RobosetExperienceReplay(name, batch_size=1, root=work / "torchrl")[:]
        ours = import_files(sorted(hub.rglob("*.h5")), "local/door", home=work / "rlds")
    numbers = theirs["episode"].numpy()
    say("trajectories", truth=8, torchrl=1 + np.count_nonzero(np.diff(numbers)), rlds=ours.num_episodes)
    last = np.flatnonzero(np.diff(numbers))[0]
    say(
        "next observation of the last step of a trial",
        truth="unknown", torchrl=float(theirs["next", "observation"][last]),
        rlds="unknown" if ours.num_transitions < ours.num_steps else "?",
    )  # fmt: skip


def vd4rl(work: Path) -> None:
    """A row holds the action before it; it is given as the one after."""
    from torchrl.data.datasets import VD4RLExperienceReplay

    name, rows = "main/walker_walk/random/64px", 6
    with _hub(work) as hub:
        (hub / "vd4rl" / name).mkdir(parents=True)
        t = np.arange(rows)
        image = np.broadcast_to(t[:, None, None, None], (rows, 64, 64, 3)).astype(np.uint8)
        action = np.where(t[:, None] > 0, t[:, None] - 0.5, 0).astype(np.float32)  # of the step that led here
        flags = {"is_first": t == 0, "is_last": t == rows - 1, "is_terminal": np.zeros(rows, bool)}
        with (hub / "vd4rl" / name / "20210101T000000-a-6.npz").open("wb") as f:
            np.savez(f, image=image, action=action, reward=action[:, 0], discount=np.ones(rows, np.float32), **flags)
        with mock.patch.object(VD4RLExperienceReplay, "available_datasets", [name]):
            theirs = VD4RLExperienceReplay(name, batch_size=1, root=work / "torchrl", totensor=False)._storage[:]
        ours = import_files([*hub.rglob("*.npz")], "local/walker", home=work / "rlds")
    say("steps", truth=rows - 1, torchrl=len(theirs), rlds=ours.num_steps)
    pixels = next(n for n in ours.schema if n.startswith("observation"))
    after = ours[2]["next"]
    say("action at the frame 2", truth=2.5, torchrl=float(theirs["action"][2]), rlds=float(ours[2]["action"][0]))
    value = int(np.asarray(after[pixels.split("/", 1)[-1]] if "/" in pixels else after[pixels]).max())
    last = int(theirs["next", "pixels"][rows - 1].max())
    say("next frame of the last step", truth=rows - 1, torchrl=last, rlds=int(_last_frame(ours, pixels)))
    say("next frame of step 2", truth=3, torchrl=int(theirs["next", "pixels"][2].max()), rlds=value)


def _last_frame(ds: rlds_cli.Dataset, name: str) -> int:
    return int(ds.column(name)[-1].max())


def gen_dgrl(work: Path) -> None:
    """Pickles are run as they come, and the number of steps is taken from the category's name."""
    from torchrl.data.datasets import GenDGRLExperienceReplay

    steps = (6, 4)
    pickled, plain = (_procgen(work / f"bigfish-{kind}.tar.xz", steps, kind) for kind in ("npy", "npz"))
    replay = GenDGRLExperienceReplay.__new__(GenDGRLExperienceReplay)
    place = mock.PropertyMock(return_value=work / "torchrl")
    with (
        mock.patch.object(GenDGRLExperienceReplay, "data_path_root", place),
        mock.patch.object(GenDGRLExperienceReplay, "_get_category_len", lambda *_: 15),  # 1,000,000 for 1M_E
    ):
        link = ("", pickled.name, "")
        theirs = replay._unpack_category_file(str(work), clear_archive=False, category_name="1M_E", link=link)
    ours = import_files(plain, "local/bigfish", home=work / "rlds")
    say("steps, where the category promises 15", truth=sum(steps), torchrl=len(theirs), rlds=ours.num_steps)
    try:
        refused = import_files(pickled, "local/pickled", home=work / "rlds").id
    except RldsError as e:
        refused = type(e).__name__
    say("pickled members", truth="may run code", torchrl="unpickled", rlds=refused)


def _procgen(archive: Path, steps: tuple[int, ...], kind: str) -> Path:
    with tarfile.open(archive, "w:xz") as tar:
        for k, length in enumerate(steps):
            episode = {
                "observations": np.full((length + 1, 3, 64, 64), k + 1, np.uint8),
                "actions": np.ones((length, 1), np.int64),
                "rewards": np.ones((length, 1), np.float32),
                "dones": np.arange(length) == length - 1,
            }
            packed = io.BytesIO()
            if kind == "npy":
                np.save(packed, np.array(episode, object), allow_pickle=True)
            else:
                np.savez(packed, **episode)
            member = tarfile.TarInfo(f"bigfish_{k}_{length}_{length}.npy")
            member.size = packed.tell()
            tar.addfile(member, io.BytesIO(packed.getvalue()))
    return archive


class _hub:
    """A stand-in for huggingface_hub whose one repository is a directory."""

    def __init__(self, work: Path) -> None:
        self.directory, self.package = work / "hub", work / "package" / "huggingface_hub"

    def __enter__(self) -> Path:
        self.directory.mkdir()
        self.package.mkdir(parents=True)
        (self.package / "__init__.py").write_text(HUB)
        os.environ["HUB_OF_ONE_DIRECTORY"] = str(self.directory)
        sys.modules.pop("huggingface_hub", None)
        sys.path.insert(0, str(self.package.parent))
        for name in ("roboset", "vd4rl"):
            module = importlib.import_module(f"torchrl.data.datasets.{name}")
            module._has_hf_hub = True
        return self.directory

    def __exit__(self, *_: object) -> None:
        sys.path.remove(str(self.package.parent))
        sys.modules.pop("huggingface_hub", None)


LIBRARIES: dict[str, Callable[[Path], None]] = {f.__name__: f for f in (minari, d4rl, roboset, vd4rl, gen_dgrl)}


def main(names: list[str]) -> None:
    """Show the faults of the families named, or of all."""
    unknown = [n for n in names if n not in LIBRARIES]
    if unknown:
        sys.exit(f"there is no {unknown[0]}; one of {', '.join(LIBRARIES)}")
    import torchrl
    from torchrl import torchrl_logger

    torchrl_logger.setLevel("ERROR")
    warnings.simplefilter("ignore")
    print(f"torchrl {torchrl.__version__}")
    for name in names or LIBRARIES:
        print(f"{name}: {(LIBRARIES[name].__doc__ or '').strip()}")
        with tempfile.TemporaryDirectory() as work:
            LIBRARIES[name](Path(work))


if __name__ == "__main__":
    main(sys.argv[1:])
