"""What the documentation says is true: its code and commands run, its tables hold, its links lead somewhere.

What README, start, cookbook, guides and concepts show is followed in test_pages.py.
"""

# ruff: noqa: F811  (fixtures of another module)

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import scattered
from lerobot_archives import Content, write_v3
from made_once import sample_dataset
from page_code import (
    CHAPTERS,
    LATER,
    ROOT,
    SAMPLES,
    STAND_INS,
    Reader,
    blocks,
    blocks_of,
    desk,  # noqa: F401  (a fixture)
    stand_in,
    text_of,
    written_desk,  # noqa: F401  (a fixture)
)
from test_pages import PAGES as FOLLOWED

import rlds_cli
from rlds_cli import registry
from rlds_cli.cli import COMMANDS
from rlds_cli.look.report.tracing import trace
from rlds_cli.make.importing import import_files
from rlds_cli.registry import lookup

pytestmark = pytest.mark.docs

PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *(p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*.md"))),
)


def load(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- links


def headings(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in headings(file.relative_to(ROOT).as_posix()), f"{page}: {target}"


# -- the code that the pages name


def resolve(name: str) -> bool:
    """Whether ``store.build.write_part`` is a module of rlds_cli, or an attribute of one."""
    found: Any = rlds_cli
    path = "rlds_cli"
    for part in name.split("."):
        path = f"{path}.{part}"
        if hasattr(found, "__path__") and find_spec(path) is not None:
            found = import_module(path)
        elif hasattr(found, part):
            found = getattr(found, part)
        else:
            return False
    return True


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_code_and_files_that_are_named_exist(page: str) -> None:
    """A renamed module or function is renamed in these pages, too."""
    packages = {p.stem for p in (ROOT / "rlds_cli").iterdir() if not p.name.startswith("_")}
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.S)
    named = set(re.findall(r"`([a-z_]\w*(?:\.\w+)+)`", text))
    code = {name for name in named if name.split(".")[0] in packages and not name.endswith(".py")}
    assert len(code) >= 3
    assert [name for name in sorted(code) if not resolve(name)] == []
    for path in re.findall(r"`((?:[\w.-]+/)+(?:[\w-]+\.\w+)?)`", text):
        made = path.startswith("screenshots/")
        assert made or (ROOT / path).exists() or (ROOT / "rlds_cli" / path).exists(), f"{page}: {path}"


def test_the_tree_of_the_architecture_is_that_of_the_package() -> None:
    listed = re.findall(r"^\| `([\w/]+)/` \|", text_of("ARCHITECTURE.md"), re.M)
    there = {p.parent.name for p in (ROOT / "rlds_cli").glob("*/__init__.py")}
    assert {folder.partition("/")[0] for folder in listed} == there
    assert [folder for folder in listed if not (ROOT / "rlds_cli" / folder / "__init__.py").exists()] == []


def test_the_architecture_is_one_page() -> None:
    """It leads through five walks, and each room is in its table."""
    text = text_of("ARCHITECTURE.md")
    assert len(text.split()) <= 1200
    assert len(re.findall(r"^\*\*(?:An?|A) [^*]+\.\*\*", text, re.M)) == 5


@pytest.mark.slow
def test_the_commands_for_contributors_run() -> None:
    """Targets of make are there; the scripts that take seconds run, the others at least exist."""
    shown = re.findall(r"^\$ (.*?)(?:  +#.*)?$", "\n".join(blocks("CONTRIBUTING.md", "console")), re.M)
    assert len(shown) >= 8
    quick = ("scripts/house.py", "scripts/make_command_docs.py", "scripts/check_registry.py")
    for command in shown:
        program, *arguments = shlex.split(command)
        if program == "make":
            done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)
        else:
            assert program == "python" and (ROOT / arguments[0]).is_file(), command
            if arguments[0] not in quick:
                continue
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
            )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_the_readme_counts_what_can_be_downloaded() -> None:
    open_families = [f for f in registry.families() if f.num_entries and f.name != "sample"]
    count = sum(f.num_entries for f in open_families)
    assert f"{count:,} datasets of [{len(open_families)} families]" in " ".join(text_of("README.md").split())


def measured(what: str) -> list[float]:
    """The ratios in the row of the results that begins so."""
    (row,) = (line for line in text_of("benchmarks/RESULTS.md").splitlines() if line.startswith(f"| {what} |"))
    return [float(ratio) for ratio in re.findall(r"\| ([\d.]+) x", row)]


def test_the_figures_of_the_readme_are_no_better_than_those_of_the_benchmarks() -> None:
    """Each row of the README names its ratios in the order of these figures, or lower ones."""
    published = load(ROOT / "benchmarks" / "published.py")
    transitions = {
        peer: published.worst("transitions", peer)
        for peer in ("torchrl: memmap", "cpprb: ReplayBuffer", "rlox: OfflineDatasetBuffer")
    }
    rows = {
        "conversion of a v2 file": [
            min(measured(f"rate / {whose}")) for whose in ("baseline's rate", "TorchRL's rate")
        ],
        "batches of 256 transitions": list(transitions.values()),
    }
    text = text_of("README.md")
    for name, ratios in rows.items():
        (row,) = (line for line in text.splitlines() if line.startswith("| ") and name in line)
        figures = re.findall(r"(?<![\d.])(\d+(?:\.\d+)?) (?:times|of)", row.split("|")[2])
        for shown, ratio in zip(figures, ratios, strict=True):
            assert float(shown) <= ratio, (row, ratio)
    (claimed,) = re.findall(r"at (\d+) times the rate of TorchRL's buffer", " ".join(text.split()))
    assert float(claimed) <= transitions["torchrl: memmap"]


def test_the_performance_page_shows_the_least_favourable_of_the_last_runs() -> None:
    published = load(ROOT / "benchmarks" / "published.py")
    for table in (published.table(), published.table_of_formats()):
        assert f"\n{table}\n" in text_of("docs/reference/performance.md"), "python benchmarks --markdown writes it"


def test_the_least_favourable_figure_counts_cpu_time_threads_and_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = load(ROOT / "benchmarks" / "published.py")
    monkeypatch.setattr(published, "RUNS", tmp_path)

    def ran(day: str, *lines: tuple[int, float, float | None]) -> None:
        groups = [
            {"group": "transitions", "threads": threads, "rows": [
                {"peer": "a", "ratio": ratio, "cpu": cpu, "sense": "at least"}
            ]}
            for threads, ratio, cpu in lines
        ]  # fmt: skip
        published.keep({"when": f"{day}T10:00:00", "machine": "m", "python": "3", "load": 1.0, "rows": groups})

    ran("2030-01-01", (1, 1.0, 1.0))
    ran("2030-01-02", (1, 9.0, None), (2, 8.0, 7.0))
    assert published.worst("transitions", "a") == 1
    ran("2030-01-03", (1, 6.0, 9.0))
    ran("2030-01-04", (1, 20.0, 20.0))
    assert published.worst("transitions", "a") == 6  # the first run is no longer among the last three
    ran("2030-01-03", (1, 9.0, 9.0))
    assert published.worst("transitions", "a") == 7  # a run of the same day is replaced; in CPU time, two threads


def test_a_run_of_some_groups_leaves_the_others_of_the_day_and_of_earlier_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = load(ROOT / "benchmarks" / "published.py")
    monkeypatch.setattr(published, "RUNS", tmp_path)

    def ran(day: str, group: str, ratio: float) -> None:
        row = {"peer": "a", "ratio": ratio, "cpu": None, "sense": "at least"}
        groups = [{"group": group, "threads": 1, "rows": [row]}]
        published.keep({"when": f"{day}T10:00:00", "machine": "m", "python": "3", "load": 1.0, "rows": groups})

    ran("2030-01-01", "transitions", 2.0)
    for day in range(2, 7):
        ran(f"2030-01-0{day}", "slices", float(day))
    ran("2030-01-06", "transitions", 3.0)
    assert published.worst("transitions", "a") == 2  # of the last three runs that measured the group
    assert published.worst("slices", "a") == 4


def test_lines_of_prose_wrap() -> None:
    script = load(ROOT / "scripts" / "wrap_docs.py")
    long = [page.name for page in script.pages() if script.wrapped(page.read_text()) != page.read_text()]
    assert long == [], "python scripts/wrap_docs.py wraps them"


def test_wrapping_leaves_code_tables_and_figures_alone() -> None:
    script = load(ROOT / "scripts" / "wrap_docs.py")
    long = "word `code span` " * 12
    kept = f"```python\n{long}\n```\n\n| {long} |\n\n## {long}\n\n<!-- figures -->\n{long}\n<!-- end of figures -->\n"
    assert script.wrapped(kept) == kept
    for start, indent in (("", ""), ("* ", "  "), ("12. ", "    ")):
        lines = script.wrapped(f"{start}{long}\nmore\n\n{kept}").split("\n\n")[0].splitlines()
        assert " ".join(" ".join(lines).split()) == f"{start}{long}more"
        assert max(map(len, lines)) <= script.WIDTH and all(re.match(rf"{indent}[`w]", line) for line in lines[1:])


# -- the table of families


def test_the_table_of_families_is_that_of_the_registry() -> None:
    known = {f.name: f.num_entries + f.num_closed for f in registry.families()}
    said = {}
    for line in text_of("docs/families/README.md").splitlines():
        if found := re.match(r"\| \[?`(\w+)`(?:\]\([\w-]+\.md\))? \| (\d+) \|", line):
            said[found[1]] = int(found[2])
    assert said == known


def test_what_check_names_by_family_are_findings() -> None:
    text = text_of("docs/families/README.md")
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text.split("## Pitfalls")[1].split("## Errors of other")[0]))
    assert named <= set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text_of("docs/guides/inspect.md")))


# -- the worked example of ted.md


def table_under(text: str, first_column: str) -> list[list[str]]:
    lines = text[text.index(f"\n| {first_column} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_worked_example_of_ted(desk: Path) -> None:
    code = blocks("docs/reference/ted.md", "python")[0]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    ds = namespace["ds"]
    example = text_of("docs/reference/ted.md").split("## An example")[1]

    rows = table_under(example, "row | episode")
    names = ("observation", "action", "next/reward", "next/terminated", "next/truncated")
    assert ds.num_rows == len(rows)
    for cells in rows:
        shown = [c.strip("*").replace("·", "0") or "False" for c in cells[3:]]
        stored = [ds.column(name)[int(cells[0])] for name in names]
        assert [str(v) if isinstance(v, np.bool_) else f"{v:g}" for v in stored] == shown

    columns = ("start", "length", "num_observed", "num_transitions", "end")
    for cells in table_under(example, "episode | start"):
        assert [str(ds.episodes[c][int(cells[0])]) for c in columns] == cells[1:]
    assert f"`ds.num_steps` is {ds.num_steps} and" in example and f"is {len(ds)}: the steps" in example


# -- the format in NumPy


def frames_dataset(path: Path) -> rlds_cli.Dataset:
    import gymnasium as gym
    import minari
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    mission = gym.spaces.Text(8)
    episodes = [
        EpisodeBuffer(
            id=k,
            seed=k if k else None,
            observations={"image": list(rng.integers(0, 255, (4, 32, 32, 3), np.uint8)), "mission": ["go"] * 4},
            actions=[0, 1, 0],
            rewards=[0.0, 0.0, 1.0],
            terminations=[False, False, True],
            truncations=[False] * 3,
            options={"low": 0.5} if k else None,
        )
        for k in range(2)
    ]
    minari.create_dataset_from_buffers(
        dataset_id="frames/test-v0",
        buffer=episodes,
        observation_space=gym.spaces.Dict({"image": space, "mission": mission}),
        action_space=gym.spaces.Discrete(2),
        **dict.fromkeys(("algorithm_name", "author", "author_email", "code_permalink", "description"), "none"),
    )
    return import_files(path / "frames/test-v0", "local/frames")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_numpy_alone_reads_arrays_frames_and_text(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(desk / "minari"))
    ds = frames_dataset(desk / "minari")
    plain = load(ROOT / "docs" / "reference" / "read_with_numpy.py").Dataset(ds.path)
    episode = plain.episode(1)
    with h5py.File(desk / "minari/frames/test-v0/data/main_data.hdf5") as f:
        archive = f["episode_1"]
        for ours, theirs in zip(episode["observation/image"], archive["observations/image"], strict=True):
            assert ours == bytes(theirs).rstrip(b"\0") or ours == bytes(theirs)
        np.testing.assert_array_equal(episode["action"], archive["actions"][()])
        assert episode["observation/mission"] == ["go"] * 4
    np.testing.assert_array_equal(plain.start, [0, 4])
    assert plain.fingerprint() == ds.fingerprint


SAMPLE_ARCHIVES = {
    "sample/pendulum-d4rl": "pendulum-d4rl.hdf5",
    "sample/cartpole-minari": "cartpole-minari/data/main_data.hdf5",
    "sample/mountaincar-robohive": "mountaincar-robohive.h5",
}


def test_the_archive_of_every_sample_is_known() -> None:
    assert sorted(e.id for e in lookup.entries("sample")) == sorted(SAMPLE_ARCHIVES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sample", SAMPLE_ARCHIVES)
def test_numpy_alone_computes_the_fingerprint(desk: Path, sample: str) -> None:
    script = load(ROOT / "docs" / "reference" / "read_with_numpy.py")
    ds = rlds_cli.download(sample)
    assert script.Dataset(ds.path).fingerprint() == ds.fingerprint
    smaller = rlds_cli.merge([sample], "local/smaller", storage="zarr")
    assert script.Dataset(smaller.path).fingerprint() == smaller.fingerprint


@pytest.mark.thorough
def test_numpy_alone_reads_versions(desk: Path) -> None:
    script = load(ROOT / "docs" / "reference" / "read_with_numpy.py")
    whole = scattered.dataset("local/whole")
    ordinary = rlds_cli.create("local/few", [whole.episode(k) for k in (3, 1, 2)])
    with rlds_cli.writer("local/run", like=ordinary) as w:
        w.add_episodes(ordinary.episode(k) for k in range(3))
    for first in (ordinary, w.dataset()):
        first.tag("first")
        second = first.label(quality="good")
        assert script.Dataset(f"{second.path}#first").fingerprint() == first.fingerprint
        assert script.Dataset(f"{second.path}#v{second.version}").fingerprint() == second.fingerprint


def test_numpy_alone_reads_videos_and_computes_their_fingerprint(desk: Path) -> None:
    ds = import_files(write_v3(desk / "film", Content(video=("top",), per_video=2)), "local/film")
    plain = load(ROOT / "docs" / "reference" / "read_with_numpy.py").Dataset(ds.path)
    assert plain.fingerprint() == ds.fingerprint
    files = sorted((desk / "film").rglob("*.mp4"))
    field = next(f for f in plain.fields if f["codec"] == "mp4")
    assert [plain.video(field, n) for n in range(len(files))] == [f.read_bytes() for f in files]


def test_numpy_alone_computes_the_fingerprint_of_scattered_episodes(desk: Path) -> None:
    """Rows of no episode, gaps, and the places of episodes do not count; columns without a value do not either."""
    script = load(ROOT / "docs" / "reference" / "read_with_numpy.py")
    ds = scattered.dataset("local/whole")
    moved = scattered.scatter(ds, desk / "moved")
    assert (np.diff(moved.episodes["start"]) < 0).any() and moved.num_rows > ds.num_rows
    assert script.Dataset(moved.path).fingerprint() == ds.fingerprint
    few = rlds_cli.create("local/few", [ds.episode(k) | {"episode": {"task": None}} for k in (7, 2)])
    assert script.Dataset(few.path).fingerprint() == few.fingerprint


@pytest.mark.thorough
@pytest.mark.parametrize("sample", SAMPLE_ARCHIVES)
def test_the_fingerprint_follows_from_the_archive_alone(desk: Path, sample: str) -> None:
    """The script of docs/reference/fingerprint.md sees no file of the store and imports nothing of rlds."""
    command = [
        sys.executable,
        "-I",
        str(ROOT / "docs/reference/fingerprint_from_archive.py"),
        str(SAMPLES / SAMPLE_ARCHIVES[sample]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == rlds_cli.download(sample).fingerprint
    assert not re.findall(r"^ *(?:import|from) rlds", Path(command[2]).read_text(), re.M)


@pytest.mark.thorough
def test_the_fingerprint_of_any_file_in_the_layout_of_d4rl(desk: Path) -> None:
    """Without next observations; an open end, large rows, rewards as a matrix, terminals that are also timeouts."""
    script = load(ROOT / "docs" / "reference" / "fingerprint_from_archive.py")
    n = 5_000
    with h5py.File(desk / "long.hdf5", "w") as f:
        f["observations"] = np.random.default_rng(0).normal(size=(n, 2))
        f["actions"], f["rewards"] = np.arange(n, dtype=np.int64), np.arange(n, dtype=np.float32)[:, None]
        f["terminals"], f["timeouts"] = np.arange(n) % 97 == 0, np.arange(n) % 89 == 0
        f["infos/qpos"] = np.random.default_rng(1).normal(size=(n, 3))
        f["infos/scan"] = np.random.default_rng(2).integers(0, 255, (n, 64, 64), np.uint8)
    with h5py.File(desk / "long.hdf5") as f:
        assert script.fingerprint(f) == import_files(desk / "long.hdf5", "local/long").fingerprint


def test_the_fingerprint_counts_a_changed_value(desk: Path) -> None:
    script = load(ROOT / "docs" / "reference" / "read_with_numpy.py")
    ds = import_files(SAMPLES / "pendulum-d4rl.hdf5", "local/sample")
    file = ds.path / "action" / "c" / "0" / "0"
    file.chmod(0o644)
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    assert script.Dataset(ds.path).fingerprint() != ds.fingerprint


# -- the reader of writing-a-reader.md


def documented(number: int, file: Path) -> str:
    """Write a reader of the page to a file, and return its name."""
    code = re.findall(r"<!-- reader -->\n```python\n(.*?)```", text_of("docs/reference/writing-a-reader.md"), re.S)[
        number
    ]
    file.write_text(code)
    return str(file)


def write_rig(file: Path) -> np.ndarray:
    """Write an archive of the page's family, and return its joints."""
    q, cmd = np.arange(18.0).reshape(6, 3), np.arange(6.0).reshape(6, 1)
    with h5py.File(file, "w") as f:
        f["q"], f["cmd"], f["cost"], f["stop"] = q, cmd, np.arange(6.0), [0, 0, 0, 1, 0, 2]
        f["gain"] = 0.5
    return q


def test_the_documented_family_of_an_engine(desk: Path) -> None:
    rig = documented(0, desk / "rig.py")
    q = write_rig(desk / "rig.h5")
    ds = import_files(desk / "rig.h5", "local/rig", reader=f"{rig}:Rig")
    assert ds.manifest.reader == "rig.py:Rig" and ds.episodes["length"].tolist() == [3, 1]
    assert ds.episodes["end"].tolist() == ["terminated", "truncated"]
    np.testing.assert_array_equal(ds.column("observation"), q, strict=True)
    assert ds.column("action").reshape(-1).tolist() == [0, 1, 2, 0, 4, 0]
    assert ds.column("next/reward").tolist() == [0, 1, 2, 0, 4, 0]
    found = trace(ds, 4, reader=f"{rig}:Rig")
    assert found.steps == 4 and not found.differences


def write_press_logs(directory: Path, lengths: list[int]) -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    directory.mkdir()
    written: dict[str, list[np.ndarray]] = {"q": [], "cmd": [], "reward": []}
    for k, length in enumerate(lengths):
        log = {"q": rng.normal(size=(length + 1, 7)), "cmd": rng.normal(size=(length, 7)), "reward": np.ones(length)}
        np.savez(directory / f"run{k}.npz", success=k % 2 == 0, **log)
        for key, values in log.items():
            written[key].append(values)
    return written


def test_the_documented_reader_reads(desk: Path) -> None:
    press = documented(1, desk / "press.py")
    lengths = [3, 1, 4] * 40  # 120 files: two parts; run10 sorts as a number
    written = write_press_logs(desk / "press", lengths)
    ds = import_files(desk / "press", "local/press", reader=press)
    assert ds.manifest.reader == "press.py" and ds.episodes["length"].tolist() == lengths
    for k in range(len(lengths)):
        start = int(ds.episodes["start"][k])
        np.testing.assert_array_equal(
            ds.column("observation")[start : start + lengths[k] + 1], written["q"][k], strict=True
        )
        np.testing.assert_array_equal(ds.column("action")[start : start + lengths[k]], written["cmd"][k], strict=True)
    assert ds.episodes["end"][:2].tolist() == ["terminated", "truncated"]
    found = trace(ds, 50, reader=press)
    assert found.ok and found.fields == ("action", "next/reward", "observation")


def test_the_documented_reader_refuses_what_does_not_fit(desk: Path) -> None:
    press = documented(1, desk / "press.py")
    write_press_logs(desk / "press", [3, 3])
    np.savez(desk / "press" / "run1.npz", q=np.zeros((3, 7)), cmd=np.zeros((3, 7)), reward=np.zeros(2), success=True)
    with pytest.raises(rlds_cli.errors.RldsError, match=r"run1\.npz has columns of q 3, cmd 3, reward 2 rows"):
        import_files(desk / "press", "local/press", reader=press)
    (desk / "press" / "run0.npz").write_bytes(b"PK\3\4 cut")
    with pytest.raises(rlds_cli.errors.CorruptArchive, match=r"run0\.npz"):
        import_files(desk / "press", "local/press", reader=press)


def test_the_documented_reader_of_another_kind(desk: Path) -> None:
    logs = documented(2, desk / "logs.py")
    (desk / "arm").mkdir()
    for k, success in enumerate((True, False)):
        log = {"q": np.arange(8.0).reshape(4, 2) + k, "cmd": np.ones((3, 1)), "reward": np.arange(3.0)}
        text = json.dumps({key: v.tolist() for key, v in log.items()} | {"success": success})
        (desk / "arm" / f"run{k}.json").write_text(text)
    ds = import_files(desk / "arm", "local/logs", reader=logs)
    assert ds.episodes["end"].tolist() == ["terminated", "truncated"]
    assert ds.column("observation").tolist() == [[2 * t + k, 2 * t + 1 + k] for k in (0, 1) for t in range(4)]
    (desk / "arm" / "run0.json").write_text("[1")
    with pytest.raises(rlds_cli.errors.CorruptArchive, match=r"run0\.json is not a readable log"):
        import_files(desk / "arm", "local/again", reader=logs)


# -- code and commands


def run_code(page: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    for code in blocks(page, "python"):
        exec(compile(stand_in(code), page, "exec"), namespace)
    return namespace


def test_the_code_of_the_format_runs(desk: Path) -> None:
    sample_dataset("pendulum-d4rl")
    with h5py.File(SAMPLES / "pendulum-d4rl.hdf5") as f:
        np.testing.assert_array_equal(
            run_code("docs/reference/format.md")["observation"][:200], f["observations"][:200]
        )


def test_the_code_about_lerobot_runs(desk: Path) -> None:
    import_files(write_v3(desk / "my_arm", Content(video=("top",))), "local/arm")
    ran = run_code("docs/families/lerobot.md")
    assert ran["images"].shape == (8, 4, 48, 64, 3) and ran["actions"].shape == (8, 4, 2)
    assert ran["ds"].manifest.env["fps"] == 10


def test_the_code_about_leaving_lerobot_runs(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What LeRobot's `delta_timestamps` are, from the frames that were written: nearest rows, and which are padding."""
    content = Content(video=("top",), lengths=(12, 7, 20), tasks=("push", "pull"))
    import_files(write_v3(desk / "my_arm", content), "local/arm")
    monkeypatch.setitem(STAND_INS, "lerobot/aloha_sim_transfer_cube_human", "local/arm")
    ran = run_code("docs/coming-from/lerobot.md")
    assert (
        ran["images"].shape[1:] == (2, 3, 96, 96) and 0 <= float(ran["images"].min()) <= float(ran["images"].max()) <= 1
    )
    inputs = ran["inputs"]
    assert set(inputs) >= {"observation.state", "action", "task", "action_is_pad", "observation.images.top_is_pad"}
    states, actions = content.column("observation.state"), content.column("action")
    for i, state in enumerate(inputs["observation.state"].numpy()):
        row = int(np.flatnonzero((states == state).all(1))[0])
        k = int(content.column("episode_index")[row])
        start, stop = content.starts[k], content.starts[k] + content.lengths[k]
        wanted = row + np.arange(16)
        np.testing.assert_array_equal(inputs["action"][i], actions[np.minimum(wanted, stop - 1)])
        np.testing.assert_array_equal(inputs["action_is_pad"][i], wanted >= stop)
        assert inputs["observation.images.top_is_pad"][i].tolist() == [row == start, False]
        assert inputs["task"][i] == content.tasks[k % 2]


def test_the_code_about_families_runs(desk: Path) -> None:
    rlds_cli.download("ogbench/pointmaze-medium-navigate-v0", source=".")
    ran = run_code("docs/families/ogbench.md")
    assert ran["val"].num_episodes == 2 and ran["arrays"]["next_observations"].shape == (6 * 19, 2)
    rlds_cli.download("robomimic/lift/ph/low_dim/v1.5", source="low_dim_v15.hdf5")
    assert run_code("docs/families/robomimic.md")["batch"]["action"].shape == (64, 16, 7)
    import_files("adult.arff", "local/adult")
    assert run_code("docs/families/openml.md")["reward"].shape == (4,)


def test_the_code_about_tfrecords_runs(desk: Path) -> None:
    import_files(desk / "my_robot", "local/robot")
    import_files(desk / "Alien", "local/alien")
    assert run_code("docs/families/openx.md")["ds"].manifest.facts["last_step"] == "action"
    ran = run_code("docs/families/rlu_atari.md")
    assert ran["ds"].manifest.facts["last_step"] == "observation" and ran["first"]["episode_return"] == 5


def test_the_code_about_leaving_tfds_runs(desk: Path) -> None:
    ds = import_files(desk / "my_robot", "local/robot", last_step="action")
    ran = run_code("docs/coming-from/rlds.md")
    assert ds.num_steps == 20 and ran["train"].num_steps == 15
    written = ds.column("action")[ds.episodes["start"][0] + np.arange(5)]  # every episode is the same
    scaled = ((written - written.mean(0)) / (written.std(0) + 1e-3)).astype(np.float32)
    batches = list(ran["loader"])
    chunks = [c for batch in batches for c in batch["action"].unfold(1, 4, 1).transpose(2, 3).numpy()]
    history = [m for batch in batches for m in batch["mask", "observation"].tolist()]
    steps = [int(np.abs(scaled - c[1, 0]).sum(1).argmin()) for c in chunks]
    assert sorted(steps) == sorted([0, 1, 2, 3, 4] * 3) and ran["images"].shape[1:] == (2, 256, 256, 3)
    for step, chunk, mask in zip(steps, chunks, history, strict=True):
        rows = step + np.arange(-1, 1)[:, None] + np.arange(4)
        np.testing.assert_allclose(chunk, scaled[np.clip(rows, 0, 4)], rtol=1e-5)
        assert mask == [step > 0, True]
    assert ran["keep"].tolist() == [1, 1, 1, 0, 0] * 4 and set(ran["batch"]["step"].tolist()) <= {0, 1, 2}
    assert ran["camera"].shape == (8, 8, 8, 3) and list(ran["prompt"]) == ["pick up the cup"] * 8


@pytest.mark.thorough
def test_the_code_about_torchrl_runs(desk: Path) -> None:
    ran = run_code("docs/coming-from/torchrl.md")
    assert tuple(ran["td"].batch_size) == (8, 32) and ran["td"]["next", "reward"].shape == (8, 32, 1)
    assert not np.array_equal(ran["batch"]["observation"], next(ran["batches"])["observation"])
    with h5py.File(SAMPLES / "mountaincar-robohive.h5") as f:
        np.testing.assert_array_equal(ran["fast"].column("speed")[:3], np.abs(f["Trial0/actions"][:3, 0]))
    assert ran["observation"].shape == (ran["ds"].num_rows, 2) and len(ran["steps"]["action"]) == len(ran["ds"])
    read = run_code("docs/coming-from/torchrl-directories.md")
    assert read["again"].fingerprint == read["ds"].fingerprint and read["td"].batch_size == (80,)
    made = rlds_cli.open_dataset("local/rollouts")
    assert made.num_episodes == 3 and made.num_transitions == 24
    assert read["ds"].num_steps == len(read["ds"]) == 80 and read["episode"]["action"].shape == (11, 2)


def test_the_code_about_minari_runs(desk: Path) -> None:
    ran = run_code("docs/coming-from/minari.md")
    with h5py.File(SAMPLES / "cartpole-minari/data/main_data.hdf5") as f:
        lengths = [len(f[f"episode_{k}/rewards"]) for k in range(12)]
    assert ran["long"].total_episodes == lengths.count(500) and ran["steps"] in lengths
    assert tuple(ran["slices"]["action"].shape) == (8, 32) and set(ran["lengths"].tolist()) <= set(lengths)
    assert ran["env"].spec.id == "CartPole-v1"


@pytest.mark.filterwarnings("ignore")  # TorchRL's own
def test_the_code_that_keeps_torchrls_interface_runs(desk: Path) -> None:
    pytest.importorskip("torchrl")
    ran: dict[str, Any] = {}
    (code,) = (code for code in blocks("docs/coming-from/torchrl.md", "py") if "load_dataset" in code)
    exec(compile(stand_in(code), "docs/coming-from/torchrl.md", "exec"), ran)
    assert ran["td"]["next", "reward"].shape == (256, 1) and ran["rb"].sample()["speed"].shape == (256, 1)
    x = ran["slices"].sample()
    assert (x["episode"].view(8, 32) == x["episode"].view(8, 32)[:, :1]).all()
    assert ran["padded"].sample()["mask"].shape[0] == 4 and ran["both"].sample().batch_size == (256,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other packages' own
@pytest.mark.parametrize(
    ("package", "page"), [("amago", "docs/reference/settings-elsewhere.md"), ("d3rlpy", "docs/families/d3rlpy.md")]
)
def test_the_code_about_other_packages_runs(package: str, page: str, desk: Path) -> None:
    pytest.importorskip(package)
    namespace: dict[str, Any] = {}
    (shown,) = (code for code in blocks(page, "py") if package in code)
    for code in (blocks("docs/guides/frameworks.md", "python")[0], shown):
        exec(compile(stand_in(code), package, "exec"), namespace)


def test_the_code_about_training_from_an_address_runs(desk: Path) -> None:
    ran = run_code("docs/reference/remote-loader.md")
    assert ran["live"].state_dict()["versions"].tolist() == [[0, ran["live"].version]]


def test_numpy_alone_reads_a_dataset_that_grows(desk: Path) -> None:
    rng = np.random.default_rng(0)
    given = []
    for k in range(9):
        n = 2 + k
        observation = {"x": rng.normal(size=(n + 1, 2)).astype(np.float32), "said": [f"s{t % 3}" for t in range(n + 1)]}
        end = {"terminated": True} if k % 2 else {}
        about = [{}, {"score": k / 2, "task": "push"}, {"task": "pull", "good": True, "count": k}][k % 3]
        of_steps = {"observation": observation, "action": rng.integers(0, 5, (n, 1)), "episode": about}
        given.append(of_steps | {"next": {"reward": [0.5] * n} | end})
    with rlds_cli.writer("local/a", keep=rlds_cli.Fifo(episodes=4)) as w:
        for e in given:
            w.add_episodes([e])
            w.commit()
    ds = w.dataset()
    plain = load(ROOT / "docs" / "reference" / "read_with_numpy.py").Dataset(ds.path)
    for k, e in enumerate(given[-4:]):
        found = plain.episode(k)
        np.testing.assert_array_equal(found["observation/x"], e["observation"]["x"], strict=True)
        assert found["observation/said"] == e["observation"]["said"]
        np.testing.assert_array_equal(found["action"], e["action"], strict=True)
    assert len(plain.start) == 4 and plain.fingerprint() == ds.fingerprint
    assert rlds_cli.create("local/b", given[-4:]).fingerprint == ds.fingerprint


# -- the first page, the cookbook and the concepts


def test_the_pictures_are_drawn_by_their_script() -> None:
    script = load(ROOT / "scripts" / "pictures.py")
    old = [n for n, draw in script.DRAWN.items() if not script.same((ROOT / "docs/pictures" / n).read_text(), draw())]
    assert old == [], "python scripts/pictures.py draws them"


NOT_TYPED = ("docs/reference/commands.md",)  # examples of help, with ids of anything
# Their code writes the files that their commands import.
IN_ORDER = ("docs/reference/episode-info.md", "docs/reference/performance.md")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in {*FOLLOWED, *LATER, *NOT_TYPED} and "\n$ rlds " in (ROOT / p).read_text()]
)
def test_commands_run(page: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What README, start, guides and cookbook show is run in test_pages.py."""
    if page == "docs/reference/writing-a-reader.md":
        documented(0, desk / "rig.py")
        write_rig(desk / "runs.h5")
    if page == "docs/families/lerobot.md":
        write_v3(desk / "my_arm", Content(video=("top",)))
    if page == "docs/reference/performance.md":
        for sample in ("pendulum-d4rl", "cartpole-minari"):
            sample_dataset(sample)
    reader = Reader(monkeypatch)
    for block in blocks_of(page):
        if block.language == "python" and page in IN_ORDER:
            reader.follow(block)
        for command, _ in block.commands if block.language == "console" else ():
            if command.startswith("rlds "):
                reader.type(command)


# -- the command reference


def test_the_command_reference_is_current() -> None:
    script = load(ROOT / "scripts" / "make_command_docs.py")
    shown = {name: (ROOT / "docs/reference" / name).read_text() for name in script.pages()}
    assert shown == script.pages(), "python scripts/make_command_docs.py writes them"
    assert [f"docs/reference/{name}" for name in shown] == [
        "docs/reference/commands.md",
        *CHAPTERS["docs/reference/commands.md"],
    ]


def test_every_command_and_option_is_explained() -> None:
    reference = text_of("docs/reference/commands.md").split("\n## rlds ")[1:]
    assert len(reference) == len(COMMANDS)
    for section in reference:
        assert re.search(r"^\$ .*rlds ", section, re.M), f"{section.splitlines()[0]} has no example"
        assert not re.search(r"^\| `[^|]*` \|\s*\|$", section, re.M), f"an option without help: {section}"


@pytest.mark.parametrize(
    "family", ["d4rl", "openx", "vd4rl", "atari_dqn", "gen_dgrl", "ogbench", "robomimic", "d3rlpy", "openml"]
)
def test_every_known_defect_is_documented(family: str) -> None:
    defects = json.loads((ROOT / "registry" / "families.json").read_text())[family]["defects"]
    rows = {
        cells[0].strip("`"): cells for cells in table_under(text_of(f"docs/families/{family}.md"), "defect | datasets")
    }
    assert set(rows) == set(defects)
    assert {name: row[2] for name, row in rows.items()} == {name: d["text"] for name, d in defects.items()}


# -- notebooks, and the site


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "docs/start").glob("*.ipynb")))
def test_the_notebooks_run(name: str, desk: Path) -> None:
    shutil.rmtree("runs")
    script = load(ROOT / "scripts" / "notebooks.py")
    namespace: dict[str, Any] = {}
    cells = json.loads((ROOT / f"docs/start/{name}.ipynb").read_text())["cells"]
    for cell in (code := [cell for cell in cells if cell["cell_type"] == "code"]):
        made = script.outputs("".join(cell["source"]), namespace)
        assert [output["output_type"] for output in made] == [output["output_type"] for output in cell["outputs"]]
    if name == "first_dataset":
        assert namespace["slices"]["observation"].shape == (8, 32, 4) and namespace["good"].num_episodes == 8
    if name == "robot_to_policy":
        assert namespace["good"].num_episodes == 5 and namespace["robot"].schema["observation/frames"].codec == "jpeg"
        losses = namespace["losses"]
        assert losses[-1] < losses[0] / 20
        script.outputs("".join(code[-1]["source"]), namespace)
        assert namespace["losses"] == losses, "another loss each time"
    if name == "offline_to_online":
        assert namespace["shares"][0] == 0 and namespace["shares"][-1] == 32


def test_the_site_has_every_page_once() -> None:
    shown = re.findall(r"^ +- (?:.+: )?([\w/-]+\.md)$", text_of("mkdocs.yml"), re.M)
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert {p for p in shown if (ROOT / "docs" / p).exists()} == pages
    assert len(set(shown)) == len(shown)
    assert [p for p in sorted(pages) if "/" not in p] == ["README.md"], "pages lie in the folders of the menu"


def test_no_page_is_long() -> None:
    words = {p.name: len(p.read_text().split()) for p in (ROOT / "docs").rglob("*.md")}
    assert {name: n for name, n in words.items() if n > 1_800} == {}
    assert len((ROOT / "README.md").read_text().split()) <= 950
    read = [p for part in ("start", "guides", "cookbook", "concepts") for p in (ROOT / "docs" / part).glob("*.md")]
    assert sum(len(p.read_text().split()) for p in read) <= 35_000, "what is looked up belongs into reference"


def test_no_page_says_what_another_says() -> None:
    """Twelve words of prose in a row stand on one page of those that are read; the others link to it."""
    said: dict[tuple[str, ...], set[str]] = {}
    for page in FOLLOWED[1:]:
        prose = re.sub(r"^```.*?^```$|\]\([^)]*\)", "", (ROOT / page).read_text(), flags=re.S | re.M)
        words = re.findall(r"[\w'.=]+", prose.lower())
        for k in range(len(words) - 11):
            said.setdefault(tuple(words[k : k + 12]), set()).add(page)
    twice = {" ".join(some): pages for some, pages in said.items() if len(pages) > 1}
    assert twice == {}


def test_the_conda_recipe_has_the_requirements_and_the_version_of_the_package() -> None:
    recipe = text_of("conda/recipe.yaml")
    needed = tomllib.loads(text_of("pyproject.toml"))["project"]["dependencies"]
    run = re.findall(r"^    - ([\w-]+) (\S+)$", recipe.split("  run:\n")[1].split("tests:")[0], re.M)
    wanted = [tuple(re.findall(r"^([\w-]+)(.*)$", n)[0]) for n in needed]
    assert run == [("python", ">=3.11"), *(("pytorch" if n == "torch" else n, bounds) for n, bounds in wanted)]
    assert f"version: {rlds_cli.__version__}\n" in recipe
