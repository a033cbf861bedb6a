"""The table of docs/families/layouts.md: what rlds makes of a small archive of each layout, as the readers say it.

Run it to compare the page with the readers, and with ``--write`` to write it. The archives are genuine layouts of
``tests/data``, and small files that the tests write in the layouts of others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

ROOT = Path(__file__).parents[1]
PAGE, DATA = ROOT / "docs" / "families" / "layouts.md", ROOT / "tests" / "data"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
_SHOWN, _LOST = 5, 3  # names of fields, and things that are left out, in a row

if TYPE_CHECKING:
    from rlds_cli.make.importing import ImportPlan

sys.path[:0] = [str(ROOT / "tests" / part) for part in (".", "support", "contract", "archives")]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout, the page that describes it, and the place of an archive of it."""

    title: str
    page: str
    place: Path


def layouts(directory: Path) -> Iterator[Layout]:
    """Yield the layouts in the order of the page; archives are written into ``directory``."""
    yield from _families(directory)
    yield from _robots(directory)
    yield from _tables(directory)


def _families(directory: Path) -> Iterator[Layout]:
    from golden import conversions

    made = {name: path for name, path, _ in conversions._written(directory / "made")}
    yield Layout("D4RL", "d4rl.md", DATA / "d4rl/hopper_random_layout-v2.hdf5")
    for form in ("hdf5", "arrow", "parquet"):
        yield Layout(f"Minari, {form}", "minari.md", DATA / f"minari/hopper/random_{form}-v0")
    yield Layout("RoboSet", "roboset.md", DATA / "roboset/door_paths.h5")
    yield Layout("robomimic", "robomimic.md", DATA / "robomimic/low_dim_layout.hdf5")
    yield Layout("OGBench", "ogbench.md", DATA / "ogbench/pointmaze-medium-navigate-v0.npz")
    yield Layout("d3rlpy, version 1", "d3rlpy.md", DATA / "d3rlpy/pendulum_random_v1.1.0.h5")
    yield Layout("d3rlpy, version 2", "d3rlpy.md", made["desk buffer.h5"])
    yield Layout("V-D4RL, an episode a file", "vd4rl.md", made["V-D4RL episodes"])
    yield Layout("V-D4RL, shards", "vd4rl.md", made["V-D4RL shards"])
    yield Layout("DQN Replay", "atari_dqn.md", DATA / "dopamine/Breakout/1/replay_logs")
    yield Layout("RL Unplugged Atari", "rlu_atari.md", made["RL Unplugged Atari"])
    yield Layout("gen_dgrl", "gen_dgrl.md", made["Procgen of gen_dgrl"])
    yield Layout("OpenML, ARFF", "openml.md", made["desk adult.arff"])
    yield Layout("TorchRL's memmaps", "torchrl-directories.md", made["TorchRL flat_full"])
    yield Layout("LeRobot v2.0", "lerobot.md", made["LeRobot v2.0"])
    yield Layout("LeRobot v2.1", "lerobot.md", made["LeRobot v2.1"])
    yield Layout("LeRobot v3.0 with videos", "lerobot.md", DATA / "lerobot/video_v3")
    yield Layout("RLDS, TFDS", "openx.md", made["Open X"])
    yield Layout("ExORL, DrQ-v2", "npz-families.md", _exorl(directory / "exorl"))
    yield Layout("NeoRL-2", "npz-families.md", _neorl(directory / "neorl"))


def _exorl(place: Path) -> Path:
    place.mkdir()
    for k in range(2):
        seen = {"observation": np.ones((5, 3), "f4"), "action": np.ones((5, 2), "f4"), "physics": np.zeros((5, 4))}
        seen |= {"reward": np.ones((5, 1), "f4"), "discount": np.ones((5, 1), "f4")}
        seen["action"][0], seen["reward"][0] = 0, 0
        np.savez(place / f"episode_{k:06d}_4.npz", **seen)
    return place


def _neorl(place: Path) -> Path:
    place.mkdir()
    seen, done = np.arange(10.0).reshape(5, 2), np.array([[0], [0], [1], [0], [1]])
    columns = {"obs": seen, "next_obs": seen + 2, "action": np.ones((5, 1)), "reward": np.ones((5, 1)), "done": done}
    np.savez(place / "Pipeline-train.npz", **columns, index=np.array([0, 3]))
    return place


def _robots(directory: Path) -> Iterator[Layout]:
    import mcap_messages
    import robot_recordings
    import test_recordings_bags
    import zarr

    buffer = zarr.open_group(directory / "buffer.zarr", mode="w", zarr_format=2)
    for name, values in {**_steps(9), "img": np.zeros((9, 8, 8, 3), np.uint8)}.items():
        buffer.create_array(f"data/{name}", data=values)
    buffer.create_array("meta/episode_ends", data=np.array([4, 7]))
    yield Layout("Zarr replay buffer: Diffusion Policy, UMI, DP3", "zarr.md", directory / "buffer.zarr")
    groups = zarr.open_group(directory / "groups.zarr", mode="w")
    for k in range(2):
        group = groups.create_group(f"episode_{k}", attributes={"success": k == 0})
        for name, values in _steps(4).items():
            group.create_array(name, data=values)
    yield Layout("Zarr, a group per episode", "zarr.md", directory / "groups.zarr")
    for title, page, write in (
        ("DROID, raw", "episode-info.md", _droid),
        ("ManiSkill", "episode-info.md", _maniskill),
        ("Isaac Lab", "robomimic.md", _isaac_lab),
        ("LIBERO", "robomimic.md", _libero),
        ("RoboCasa", "robomimic.md", _robocasa),
    ):
        (place := directory / title.lower().replace(" ", "-")).mkdir()
        write(place)
        yield Layout(title, page, place)
    robot_recordings.record(directory / "ros2.mcap")
    yield Layout("MCAP of ROS 2", "recordings.md", directory / "ros2.mcap")
    yield Layout("Bag of ROS 2 in SQLite", "recordings.md", test_recordings_bags.ros2(directory / "bag"))
    yield Layout("Bag of ROS 1", "recordings.md", test_recordings_bags.ros1(directory / "ros1.bag"))
    times = [(k * 50 * robot_recordings.MS, {"position": [0.1 * k, 0.2]}) for k in range(4)]
    channels = [mcap_messages.of_json(topic, times) for topic in ("/joint_states", "/joint_command")]
    mcap_messages.write(directory / "json.mcap", channels)
    yield Layout("MCAP of JSON", "recordings.md", directory / "json.mcap")


def _droid(place: Path) -> None:
    from lerobot_archives import encode

    (folder := place / "ILIAD/success/2023-07-01/Sat_Jul__1_09:42:23_2023").mkdir(parents=True)
    with h5py.File(folder / "trajectory.h5", "w") as f:
        f["observation/robot_state/joint_positions"], f["action/joint_velocity"] = np.ones((2, 3, 7))
    said = {"lab": "ILIAD", "success": True, "current_task": "Open the drawer"}
    (folder / "metadata_ILIAD+5d05c5aa+2023-07-01-09h-42m-23s.json").write_text(json.dumps(said))
    encode(folder / "recordings/MP4/20521388.mp4", np.zeros((3, 32, 48, 3), np.uint8), "libx264", {})


def _maniskill(place: Path) -> None:
    with h5py.File(place / "trajectory.h5", "w") as f:
        for k in range(2):
            g = f.create_group(f"traj_{k}")
            g["obs"], g["actions"] = np.ones((4, 3), "f4"), np.ones((3, 2), "f4")
            g["terminated"], g["truncated"] = np.arange(3) == 2, np.zeros(3, bool)
    listed = [{"episode_id": k, "episode_seed": k, "control_mode": "pd_joint_pos", "success": True} for k in range(2)]
    said = {"env_info": {"env_id": "PickCube-v1"}, "episodes": listed}
    (place / "trajectory.json").write_text(json.dumps(said))


def _isaac_lab(place: Path) -> None:
    with h5py.File(place / "dataset.hdf5", "w") as f:
        f.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Isaac-Stack-Cube-v0", "type": 2})
        for k in range(2):
            g = f.create_group(f"data/demo_{k}")
            g.attrs.update(num_samples=3, seed=7, success=k == 0)
            g["actions"], g["obs/eef_pos"] = np.ones((3, 7), "f4"), np.ones((3, 3), "f4")
            g["initial_state/articulation/robot/joint_position"] = np.ones((1, 9), "f4")


def _libero(place: Path) -> None:
    with h5py.File(place / "open_the_drawer_demo.hdf5", "w") as f:
        f.create_group("data").attrs["problem_info"] = json.dumps({"language_instruction": "open the drawer"})
        f["data"].attrs["env_args"] = json.dumps({"env_name": "Libero_Tabletop_Manipulation", "type": 1})
        for k in range(2):
            g = f.create_group(f"data/demo_{k}")
            g["actions"], g["obs/joint_states"], g["rewards"] = np.ones((3, 7)), np.ones((3, 7)), np.zeros(3, "u1")
            g["dones"], g["states"], g["robot_states"] = np.arange(3) == 2, np.ones((3, 9)), np.ones((3, 9))


def _robocasa(place: Path) -> None:
    with h5py.File(place / "demo_im128.hdf5", "w") as f:
        f.create_group("data").attrs["env_args"] = json.dumps({"env_name": "OpenDrawer", "type": 1})
        for k in range(2):
            g = f.create_group(f"data/demo_{k}")
            g.attrs["ep_meta"] = json.dumps({"lang": "open the left drawer", "layout_id": k})
            g["actions"], g["obs/robot0_joint_pos"], g["states"] = np.ones((3, 12)), np.ones((3, 7)), np.ones((3, 9))


def _tables(directory: Path) -> Iterator[Layout]:
    import hub_tables
    import own_files
    import rllib_files

    ends = np.array([False, False, True, False, True])
    columns = {"observation": _steps(5)["state"], "action": _steps(5)["action"], "reward": np.ones(5), "done": ends}
    for suffix in ("npz", "h5", "parquet", "csv", "jsonl"):
        of_file = columns if suffix not in ("csv",) else {**columns, "observation": columns["observation"][:, 0]}
        path = own_files.write(directory / f"rows.{suffix}", of_file)
        yield Layout(f"Rows of many episodes, .{suffix}", "tables.md", path)
    (directory / "runs").mkdir()
    for k in range(2):
        own_files.write(directory / f"runs/run{k}.npz", {**columns, "done": ends & False, "success": np.array(k == 0)})
    yield Layout("A file per episode", "bring-your-own-data.md", directory / "runs")
    yield Layout(
        "`save_to_disk` of datasets", "hub-tables.md", hub_tables.saved(directory / "saved", hub_tables.rows())
    )
    rows = hub_tables.episode_rows()
    path = hub_tables.write_rows(directory / "transformer.parquet", rows)
    yield Layout("A row per episode: Decision Transformer", "hub-tables.md", path)
    path = hub_tables.write_rows(directory / "imitation.parquet", hub_tables.episode_rows(final=True))
    yield Layout("A row per episode: imitation", "hub-tables.md", path)
    flat = {"obs": np.zeros((9, 4)), "acts": np.zeros(7), "rews": np.ones(7), "infos": np.array(["{}"] * 7)}
    np.savez(directory / "imitation.npz", **flat, terminal=np.ones(2, bool), indices=np.array([3]))
    yield Layout("imitation's npz", "hub-tables.md", directory / "imitation.npz")
    path = directory / "rllib.json"
    path.write_text("".join(json.dumps(rllib_files.batch(k, 3)) + "\n" for k in range(2)))
    yield Layout("RLlib, batches in JSON", "hub-tables.md", path)
    path = rllib_files.write_states(directory / "rllib.parquet", [rllib_files.episode(k, 3) for k in range(2)])
    yield Layout("RLlib, episodes of the new API stack", "hub-tables.md", path)
    reagent = {"mdp_id": [1, 1, 2, 2, 2], "sequence_number": [0, 1, 0, 1, 2], "state_features": columns["observation"]}
    reagent |= {"next_state_features": columns["observation"] + 1, "action": [0, 1, 0, 1, 0], "reward": np.ones(5)}
    yield Layout("ReAgent", "tables.md", own_files.write(directory / "reagent.parquet", reagent))


def _steps(rows: int) -> dict[str, np.ndarray]:
    return {"state": np.arange(2.0 * rows).reshape(rows, 2), "action": np.ones((rows, 1))}


def row(layout: Layout, plan: ImportPlan) -> str:
    """Return the line of a layout."""
    from rlds_cli import look
    from rlds_cli.base.text import ends_in_words
    from rlds_cli.look.report.account import named
    from rlds_cli.ted import FLAGS

    recognised = plan.recognised.partition(":")[0].partition(" (")[0].replace("|", r"\|")
    fields = _some([f"`{f.name}`" for f in sorted(plan.fields, key=look.rank) if f.name not in FLAGS])
    lost = _some([f"`{named(e)}`: {e.left_out}" for e in plan.account if e.left_out], "; ", _LOST) or "nothing"
    rule, _, column = plan.episodes_by.rpartition(":")
    rule = rule or column
    column = column if rule != column else ""
    words = {"file": "the file, record or group", "flags": "flags"}
    ends = f"`{column}`" if column else words.get(rule, f"`{rule}`")
    if (said := ends_in_words(plan.episodes_by)) != plan.episodes_by:
        ends = said
    page = next(p for p in (PAGE.with_name(layout.page), *(ROOT / "docs").rglob(layout.page)) if p.exists())
    cells = (f"[{layout.title}]({os.path.relpath(page, PAGE.parent)})", recognised, fields, ends, lost)
    return f"| {' | '.join(cells)} |"


def _some(names: Sequence[str], between: str = ", ", most: int = _SHOWN) -> str:
    more = len(names) - most
    return between.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def table() -> str:
    """Return the table, made by the readers."""
    from rlds_cli.base.files import child
    from rlds_cli.make.importing import plan_import

    lines = ["| layout | recognised as | fields | episodes end by | not kept of the sample |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as directory, child.reading():
        found = layouts(Path(directory))
        lines += [row(layout, plan_import(layout.place, "local/sample")) for layout in found]
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str]) -> int:
    """Compare the page with the readers, or write it."""
    text = PAGE.read_text() if PAGE.exists() else BEGIN + END
    before, _, rest = text.partition(BEGIN)
    found = before + BEGIN + table() + END + rest.partition(END)[2]
    if "--write" in arguments:
        PAGE.write_text(found)
    elif found != text:
        print("docs/families/layouts.md is not what the readers say: python scripts/layouts.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
