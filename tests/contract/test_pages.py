"""A reader who follows README, start, cookbook, guides and concepts runs every block that they show."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import page_code
import pytest
import torch
from made_once import sample_dataset
from page_code import PYTHON, SHELL, Block, Reader, blocks_of, desk, written_desk  # noqa: F401  (fixtures)

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.loader import Loader

pytestmark = pytest.mark.docs

ROOT, SAMPLES = page_code.ROOT, page_code.SAMPLES
FOLDERS = ("start", "cookbook", "guides", "concepts")
PAGES = [
    "README.md",
    "docs/README.md",
    *(p.relative_to(ROOT).as_posix() for f in FOLDERS for p in sorted((ROOT / "docs" / f).glob("*.md"))),
]

# Blocks that are not run, by how they begin, and why.
NOT_RUN = {
    "$ pip install torch": "installs from a package index; tests/contract/test_wheel.py installs what is built",
    "pip install torch": "installs from a package index; tests/contract/test_wheel.py installs what is built",
    "rlds preprocess d4rl/hopper-medium-v2 --fn examples/normalise.py:normalise --executor ray": "a Ray cluster; "
    "make test-ray starts one of two nodes",
    'ds = preprocess.run(source, "examples/normalise.py:normalise", executor="ray"': "a Ray cluster; make test-ray",
    "import gymnasium\nimport ray\n": "a Ray cluster, and MuJoCo",
    "$ ssh ": "a second machine",
}
# Blocks that are run where a package is that the tests do not install.
WHERE_INSTALLED = {
    "import lightning\n": "lightning",
    "frame = ds.episodes.to_pandas()\n": "pandas",
    "import torch\nfrom accelerate import Accelerator\n": "accelerate",
}
SLOW: set[str] = set()


def not_run(block: Block) -> str | None:
    """Why a block is not run here, None if it is."""
    absent = {
        start: f"{package} is not installed" for start, package in WHERE_INSTALLED.items() if not find_spec(package)
    }
    return next((reason for start, reason in (NOT_RUN | absent).items() if block.code.startswith(start)), None)


def shown(page: str) -> list[Block]:
    """What a reader of a page runs; of a chapter in reference, what needs nothing that is elsewhere."""
    code = [block for block in blocks_of(page) if block.language in (*PYTHON, *SHELL)]
    return [block for block in code if block.page in PAGES or block.language in ("python", "console")]


def test_every_block_is_of_a_language_that_is_run_or_is_no_code() -> None:
    """A fence of another name would hide code from the reader below."""
    assert {b.language for page in PAGES for b in blocks_of(page)} <= {*PYTHON, *SHELL, "text", "toml"}


def test_what_is_not_run_is_on_a_page() -> None:
    starts = [*NOT_RUN, *WHERE_INSTALLED]
    codes = [block.code for page in PAGES for block in shown(page)]
    assert [start for start in starts if not any(code.startswith(start) for code in codes)] == []


# -- what pages begin with, and what holds when their last block has run

Ran = dict[str, Any]
SetEnv = Callable[[str, str], None]
BEFORE: dict[str, Callable[[Path, SetEnv], Ran | None]] = {}
AFTER: dict[str, Callable[[Ran], None]] = {}
INSTEAD: dict[str, dict[str, str]] = {
    "README.md": {
        "d4rl/hopper-medium-v2": "sample/mountaincar-robohive",
        "s3://our-lab/press": "HERE/store/press",
        "sync rlds.lock": "sync rlds.lock --home there",
    },
    "docs/guides/downloading.md": {
        "d4rl/hopper-medium-v2 --from ~/copies": "ogbench/pointmaze-medium-navigate-v0 --from ~/copies",
        "openx/bridge --from s3://our-bucket/robots/bridge": "sample/cartpole-minari --from HERE/robots/bridge",
        "rlu_atari/Pong_run_1": "rlu_atari/Alien_run_1 --from HERE/games/run_1",
        "/shared/": "HERE/shared/",
    },
    "docs/guides/frameworks.md": {"f\"cuda:{os.environ['LOCAL_RANK']}\"": '"cpu"'},
    "docs/guides/homes.md": {"/media/": "HERE/media/", "/data/": "HERE/data/"},
    "docs/guides/lab.md": {"/srv/": "HERE/srv/"},
    "docs/guides/live.md": {"d4rl/hopper-medium-v2": "local/played"},
    "docs/guides/papers.md": {" ID": " sample/cartpole-minari", "d4rl/hopper-medium-v2": "d4rl/hopper-medium-v2"},
}


def before(page: str) -> Callable[[Any], Any]:
    return lambda function: BEFORE.setdefault(page, function)


def after(page: str) -> Callable[[Any], Any]:
    return lambda function: AFTER.setdefault(page, function)


def samples(*names: str) -> Callable[..., None]:
    def download(*_: object) -> None:
        for name in names:
            sample_dataset(name)

    return download


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:minari")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in SLOW else ())
        for page in PAGES
        if page not in page_code.LATER and any(not not_run(block) for block in shown(page))
    ],
)
def test_every_block_runs(
    page: str,
    desk: Path,  # noqa: F811
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = BEFORE.get(page, lambda *_: None)(desk, monkeypatch.setenv)
    instead = {shown: run.replace("HERE", str(desk)) for shown, run in INSTEAD.get(page, {}).items()}
    reader = Reader(monkeypatch, instead, **(names or {}))
    for block in shown(page):
        if not not_run(block):
            reader.follow(block)
    AFTER.get(page, lambda ran: None)(reader.names)


# -- README and the first page


@before("README.md")
def _(here: Path, setenv: SetEnv) -> None:
    shutil.copytree(here / "runs", here / "press")


@after("README.md")
def _(ran: Ran) -> None:
    assert [tuple(x.shape) for x in (ran["s"], ran["a"], ran["r"], ran["terminated"])] == [
        (256, 2), (256, 1), (256, 1), (256, 1),
    ]  # fmt: skip
    assert set(ran["data"]) >= {"observations", "actions", "rewards", "terminals", "next_observations"}
    made, arrived = (rlds_cli.open_dataset("local/press@normalise", home=home) for home in (None, "there"))
    assert arrived.fingerprint == made.fingerprint and not Path("there/archives").exists()
    *_, last = Loader(made, batch_size=256, seed=0, steps=3)
    assert (ran["batch"]["observation"] == last["observation"]).all()


@after("docs/README.md")
def _(ran: Ran) -> None:
    assert ran["printed"] == page_code.blocks("docs/README.md", "text") and len(ran["good"].episodes) == 8


before("docs/start/tutorial.md")(samples("pendulum-d4rl"))


@after("docs/start/tutorial.md")
def _(ran: Ran) -> None:
    assert ran["long"].num_episodes == 8 and ran["total"] == 500
    shown, made = (rlds_cli.open_dataset(f"sample/cartpole-minari{v}") for v in ("", "@scale"))
    np.testing.assert_array_equal(made.column("observation"), np.tanh(shown.column("observation")))


# -- the cookbook


@after("docs/cookbook/data.md")
def _(ran: Ran) -> None:
    assert [ran[part].num_episodes for part in ("train", "validation", "test")] == [10, 1, 1]
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        episodes = [f[f"episode_{k}"] for k in range(12)]
        returns = np.array([e["rewards"][()].sum() for e in episodes])
        far = [abs(e["observations"][:-1, 0]).max() for e in episodes]
    assert sorted(ran["best"].episodes["total_reward"]) == sorted(returns[returns >= np.quantile(returns, 0.9)])
    assert ran["calm"].num_episodes == sum(x < 1.0 for x in far)
    best, most = ran["loader"].consumed()["best"], 256 * 1_000
    assert best == pytest.approx(most / 4, rel=0.01)  # the mean of a line from none to a half


@after("docs/cookbook/batches.md")
def _(ran: Ran) -> None:
    assert ran["frames"].shape == ran["after"].shape == (256, 4, 4)
    assert (ran["frames"][:, 1:] == ran["after"][:, :-1]).all()  # the next observation is one row further
    assert ran["images"].shape == (8, 3, 32, 32) and ran["with_angle"].schema["angle"].shape == ()
    observation = ran["with_angle"].column("observation")
    np.testing.assert_array_equal(ran["with_angle"].column("angle"), np.abs(observation[:, 2]))
    assert ran["batch"]["return_to_go"].shape == ran["advantage"].shape == (256, 1) and ran["weight"].shape == (256,)


@before("docs/cookbook/train.md")
@before("docs/guides/frameworks.md")
def _(here: Path, setenv: SetEnv) -> Ran:
    """A group of one; several ranks share batches in tests/loader."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        setenv(name, value)
    return {"checkpoint": {"step": 0}}


@after("docs/cookbook/train.md")
def _(ran: Ran) -> None:
    assert f"3 {4_341 - 2 * 2_048}\n" in ran["printed"]  # an epoch of 2,048 at a time
    whole = list(Loader(ran["ds"], 256, sampler=ran["Shuffled"](), seed=0))
    same = [k for k, batch in enumerate(whole[:-1]) if (batch["observation"] == ran["eleventh"]["observation"]).all()]
    assert same == [10]
    assert ran["returns"].tolist() == [500, 500, 500]


@after("docs/cookbook/elsewhere.md")
def _(ran: Ran) -> None:
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        np.testing.assert_array_equal(ran["observations"], f["episode_3/observations"])
        np.testing.assert_array_equal(ran["actions"], f["episode_3/actions"])


# -- concepts


@after("docs/concepts/mixtures.md")
def _(ran: Ran) -> None:
    assert sorted(ran["batch"]["source"].tolist()) == [0] * 6 + [1] * 2


@after("docs/concepts/windows.md")
def _(ran: Ran) -> None:
    assert ran["batch"]["observation"].shape == (8, 4, 4) and ran["batch"]["mask"].shape == (8, 4)


# -- guides: your data


@after("docs/guides/bring-your-own-data.md")
def _(ran: Ran) -> None:
    assert ran["ds"].manifest.env["id"] == "Press-v0" and ran["ds"].episodes["end"].tolist() == ["terminated"]
    assert tuple(ran["batch"]["observation"].shape) == (256, 2)
    assert rlds_cli.open_dataset("local/table").episodes["end"].tolist() == ["terminated", "cut"]
    assert rlds_cli.open_dataset("local/with-final").episodes["num_observed"].tolist() == [4, 3]
    assert rlds_cli.open_dataset("local/drive").episode(0)["observation"][1].tolist() == [0.1, 0.0, 0.2]
    assert ran["good"].episodes["length"].tolist() == [5, 4] and ran["demos"].episodes["success"].tolist()[0] is False
    assert rlds_cli.open_dataset("local/arm").episodes["task"].tolist() == ["push"] * 3
    assert ran["pulls"].num_steps == 2
    buffer = rlds_cli.open_dataset("local/buffer")
    assert buffer.episodes["length"].tolist() == [3, 3] and len(buffer) == 6


@after("docs/guides/growing.md")
def _(ran: Ran) -> None:
    assert (ran["ds"].num_episodes, ran["newer"].num_episodes) == (20, 21)
    assert ran["again"].fingerprint == ran["ds"].fingerprint != ran["newer"].fingerprint
    lengths, kept = ran["ds"].episodes["length"].tolist(), ran["recent"].episodes["length"].tolist()
    newest = next(k for k in range(1, 20) if sum(lengths[k:]) <= 100)
    assert kept == [lengths[0], *lengths[newest:]]
    merged = rlds_cli.open_dataset("local/all").episodes
    assert merged["dataset"].tolist() == ["local/run7"] * 20 + ["local/played"] * 3
    assert rlds_cli.open_dataset("local/swings").num_episodes == 26


# -- guides: get and look


@before("docs/guides/downloading.md")
def _(here: Path, setenv: SetEnv) -> None:
    """Copies of files, an archive as an archive, and the home of another lab."""
    (here / "copies").mkdir()
    for file in here.glob("pointmaze-*.npz"):
        shutil.copy(file, here / "copies")
    shutil.copytree(SAMPLES / "cartpole-minari", here / "robots/bridge")
    shutil.copytree(here / "Alien", here / "games/run_1")
    rlds_cli.download("sample/pendulum-d4rl", home=here / "shared/rlds")


@after("docs/guides/downloading.md")
def _(ran: Ran) -> None:
    assert os.environ["RLDS_MIRROR"].startswith(f"{Path.cwd()}/shared/archives https://")
    part = rlds_cli.open_dataset("sample/cartpole-minari@episodes-0-3")
    assert part.num_episodes == 3
    assert rlds_cli.open_dataset("sample/cartpole-minari").num_episodes == 12
    assert rlds_cli.open_dataset("ogbench/pointmaze-medium-navigate-v0").num_episodes == 8
    assert rlds_cli.open_dataset("sample/pendulum-d4rl").num_episodes == 26


@after("docs/guides/inspect.md")
def _(ran: Ran) -> None:
    assert ran["report"].errors == 0
    assert all(Path(name).stat().st_size > 1_000 for name in ("returns.svg", "speed.svg", "sheet.png", "ball.mp4"))
    good = rlds_cli.open_dataset("sample/cartpole-minari@best")
    assert (good.episodes["total_reward"] >= 400).all()


@after("docs/guides/report.md")
def _(ran: Ran) -> None:
    assert ran["written"].bytes > 10_000 and Path("report.html").exists()


@after("docs/guides/dataset.md")
def _(ran: Ran) -> None:
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        np.testing.assert_array_equal(ran["trajectory"], f["episode_3/observations"])
        np.testing.assert_array_equal(ran["episode"]["action"], f["episode_3/actions"])
        np.testing.assert_array_equal(ran["reward"][:, 0], f["episode_0/rewards"][:100])
        returns = [f[f"episode_{k}/rewards"][()].sum() for k in range(12)]
    assert ran["good"].episodes["total_reward"].tolist() == [r for r in returns if r >= 400]
    assert ran["train"].num_episodes + ran["held_out"].num_episodes == ran["good"].num_episodes
    newest = rlds_cli.open_dataset("sample/cartpole-minari@longer")
    assert (newest.version, ran["long"].num_episodes, newest.num_episodes) == (4, 6, 8)
    balanced = rlds_cli.open_dataset("sample/cartpole-minari@balanced")
    assert all(abs(balanced.episode(k)["observation"][:, 2]).max() < 0.1 for k in range(9))


@after("docs/guides/examples.md")
def _(ran: Ran) -> None:
    assert ran["observation"].shape == (4,) and ran["env"].spec.id == "CartPole-v1"


@before("docs/guides/homes.md")
def _(here: Path, setenv: SetEnv) -> None:
    samples("pendulum-d4rl", "cartpole-minari")()
    rlds_cli.create("local/press", [{"observation": np.zeros((3, 2)), "action": np.ones((2, 1))}])


@after("docs/guides/homes.md")
def _(ran: Ran) -> None:
    moved = rlds_cli.open_dataset("local/press", home="data/rlds")
    assert moved.fingerprint == rlds_cli.open_dataset("local/press").fingerprint


@after("docs/guides/lab.md")
def _(ran: Ran) -> None:
    home = Path(".cache/rlds/datasets/sample")
    assert [p.name for p in home.iterdir()] == ["pendulum-d4rl@normalise"]  # the other one is the lab's


# -- guides: preprocess


@before("docs/guides/preprocess.md")
def _(here: Path, setenv: SetEnv) -> None:
    samples("pendulum-d4rl", "cartpole-minari")()
    (here / "relabel.py").write_text("def relabel(episode, model):\n    return episode\n")
    for file in ("reward.pt", "scale.json"):
        (here / file).write_text("{}")
    (here / "bin").mkdir()
    (here / "bin/sbatch").write_text(SBATCH)
    (here / "bin/sbatch").chmod(0o755)
    setenv("PATH", f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}")


# Stands in for SLURM's: runs the tasks of an array all at once, or what the command wraps.
SBATCH = """#!/bin/bash
if [ "$1" = --parsable ]; then
    echo 7
    export SLURM_CPUS_PER_TASK=0
    for task in 1 2 3 4; do SLURM_ARRAY_TASK_ID=$task bash "$2" >&2 & tasks+=($!); done
    for task in "${tasks[@]}"; do wait "$task" || exit 1; done
else
    [ "$1" = --dependency=afterok:7 ] && bash -c "$3"
fi
"""


@after("docs/guides/preprocess.md")
def _(ran: Ran) -> None:
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        rewards = f["rewards"][:]
    np.testing.assert_array_equal(ran["ds"].column("next/reward")[:200], rewards[:200] - np.float32(1))
    returns = [x.sum(dtype=np.float64) for x in np.split(rewards, range(200, 5100, 200))]  # 25 of 200 steps, one of 100
    np.testing.assert_allclose(preprocess.state(ran["scaled"]), [min(returns), max(returns)], rtol=1e-5)
    np.testing.assert_allclose(np.ptp(ran["scaled"].episodes["total_reward"]), 1000, rtol=1e-5)
    assert ran["ds"].manifest.shared["observation"] in ("link", "reflink", "copy")
    once, sharded = (rlds_cli.open_dataset(f"sample/pendulum-d4rl@{name}") for name in ("once", "normalise"))
    assert sharded.fingerprint == once.fingerprint


before("docs/guides/relabel.md")(samples("cartpole-minari"))


@after("docs/guides/relabel.md")
def _(ran: Ran) -> None:
    assert ran["batch"]["next", "reward"].shape == ran["batch"]["info", "model_value"].shape == (256, 1)


# -- guides: train


@after("docs/guides/loader.md")
def _(ran: Ran) -> None:
    assert ran["loader"].step == 10 and next(iter(ran["again"])) is not None and ran["again"].step == 11
    assert tuple(ran["three_steps"]["next", "discount"].shape) == (256, 1)
    assert tuple(ran["slices"]["observation"].shape) == (8, 32, 3)
    assert tuple(ran["padded"]["mask"].shape) == tuple(ran["padded"]["step"].shape) == (8, 20)


@after("docs/guides/fields.md")
def _(ran: Ran) -> None:
    assert ran["b"]["return_to_go"].shape == (64, 20, 1) and ran["image"].shape == (3, 64, 64)


@after("docs/guides/mixtures.md")
def _(ran: Ran) -> None:
    assert ran["from_expert"].sum() == 64
    shares = [ran["ramp"](1000 * epoch)["expert"] for epoch in (0, 9, 10, 11, 12, 13, 14)]
    assert [x / (x + 0.8) for x in shares] == pytest.approx([0, 0, 0.05 / 0.85, 0.1 / 0.9, 0.15 / 0.95, 0.2, 0.2])
    assert tuple(ran["padded"]["action"].shape) == tuple(ran["padded"]["mask", "action"].shape) == (256, 6)
    assert ran["padded"]["mask", "observation"].sum(1).unique().tolist() == [2, 3]
    assert (next(iter(ran["loader"]))["source"] == 0).sum() in (198, 199)  # 5,100 and 1,479 transitions


@after("docs/guides/live.md")
def _(ran: Ran) -> None:
    assert ran["state"]["versions"].tolist()[0] == [0, 1] and ran["live"].version == 2
    assert ran["recorded"].sum() == 32  # half of the batch
    assert rlds_cli.open_dataset("local/online").num_steps == 5_000
    assert ran["fresh"] == 0 and ran["batch"].absent == ("online",)
    ran["w"].close()


@after("docs/guides/frameworks.md")
def _(ran: Ran) -> None:
    torch.distributed.destroy_process_group()
    assert ran["step"] == 30 and tuple(ran["td"].batch_size) == (8, 32) and tuple(ran["flat"].batch_size) == (256,)
    assert ran["state"].shape == () and ran["batch"]["observation"].dtype == np.float32
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        archive = {name: f[name][()] for name in ("observations", "actions", "rewards", "next_observations")}
    ends, drawn = [*range(199, 5000, 200), 5099], {k: ran["sequences"][k].numpy() for k in ("episode", "step")}
    for i in range(24):
        t, k = int(drawn["step"][i, 0]), int(drawn["episode"][i, 0])
        rows = np.arange(200 * k + t, min(200 * k + t + 64, ends[k] + 1))
        n, data = len(rows), {key: v[i].numpy() for key, v in ran["data"].items() if key != "obs"}
        observations = ran["data"]["obs"]["observation"][i].numpy()
        np.testing.assert_array_equal(
            observations[: n + 1], [*archive["observations"][rows], archive["next_observations"][rows[-1]]]
        )
        np.testing.assert_array_equal(data["rews"][:n, 0], archive["rewards"][rows])
        np.testing.assert_array_equal(data["actions"][:n], archive["actions"][rows])
        np.testing.assert_array_equal(data["time_idxs"][: n + 1, 0], np.arange(t, t + n + 1))
        results = np.column_stack([archive["rewards"], archive["actions"]])
        before = results[rows[0] - 1] if t else np.zeros(2)
        np.testing.assert_array_equal(data["rl2s"][: n + 1], [before, *results[rows]])
        assert not data["dones"][:n].any() and data["dones"][n:].all()
        padding = [
            observations[n + 1 :],
            *(data[key][n + (key in ("rl2s", "time_idxs")) :] for key in data if key != "dones"),
        ]
        assert all((values == 4).all() and len(values) == 64 - n for values in padding)


# -- guides: share


before("docs/guides/export.md")(samples("cartpole-minari", "pendulum-d4rl", "mountaincar-robohive"))


@after("docs/guides/export.md")
def _(ran: Ran) -> None:
    assert ran["rows"]["observation"].to_pylist()[1] == ran["ds"].episode(0)["observation"][1].tolist()
    assert ran["done"].fingerprint == ran["ds"].fingerprint == ran["again"].fingerprint
    assert (ran["episode"].observations[:-1] == ran["ds"].episode(0)["observation"]).all()
    assert {p.name for p in Path().iterdir()} >= {
        *("cartpole-v0", "pendulum", "cartpole-demos", "good-v0", "cartpole-frames", "mountaincar")
    }


@after("docs/guides/sharing.md")
def _(ran: Ran) -> None:
    assert ran["done"].sent == 0 and ran["ds"].fingerprint == ran["done"].fingerprint
    copy = rlds_cli.open_dataset("local/copy", home="another-home")
    assert copy.fingerprint == rlds_cli.open_dataset("local/log").fingerprint and copy.num_episodes > 1
    assert rlds_cli.open_dataset("local/arm@norm", home="third-home").fingerprint == ran["ds"].fingerprint


@after("docs/guides/remote.md")
def _(ran: Ran) -> None:
    assert ran["ds"].store.address and ran["ds"].fingerprint == ran["local"].fingerprint
    assert rlds_cli.open_dataset("local/copy", home="third-home").fingerprint == ran["ds"].fingerprint
