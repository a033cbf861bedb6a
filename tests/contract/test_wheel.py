"""The wheel, installed where nothing else is: the registry and the samples are in it, and ``rlds list`` runs."""

import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ("typer", "tqdm")  # what `rlds list` and `rlds info` import, with what these need themselves

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--no-index", "-w", target, ROOT], check=True)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """A virtual environment with the wheel and the tested versions of NEEDED: no network, no NumPy, no torch."""
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in closure(NEEDED):
        link(metadata.distribution(name), site)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", directory / "bin" / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return directory


def closure(names):
    """The distributions of ``names`` and all that they need; what markers exclude is not installed here either."""
    installed = {normal(d.name) for d in metadata.distributions()}
    found, todo = set(), list(names)
    while todo:
        name = normal(todo.pop())
        if name in installed and name not in found:
            found.add(name)
            wanted = metadata.requires(name) or []
            todo += [re.match(r"[\w.-]+", text)[0] for text in wanted if "extra ==" not in text]
    return found


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def link(distribution, site):
    tops = {f.parts[0] for f in distribution.files if f.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        target = site / top
        if not target.exists():
            target.symlink_to(Path(distribution.locate_file(top)))


def rlds(clean, *args):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(clean), "RLDS_OFFLINE": "1"}
    command = [clean / "bin" / "rlds", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_registry_and_samples(wheel):
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        for path in (ROOT / "registry").glob("*.json*"):
            assert z.read(f"rlds_cli/_registry/{path.name}") == path.read_bytes()
        for path in (ROOT / "rlds_cli" / "samples").rglob("*"):
            if path.is_file():
                assert z.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()
    assert "rlds_cli/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "docs/", "registry/")) or "__pycache__" in n]


def test_the_wheel_holds_the_parts_of_reports(wheel):
    static = ROOT / "rlds_cli" / "look" / "report" / "templates"
    with zipfile.ZipFile(wheel) as z:
        for path in static.iterdir():
            assert z.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()


def test_rlds_list_in_a_clean_environment(clean):
    lines = rlds(clean, "list").splitlines()
    counts = dict(line.split()[:2] for line in lines[1:] if line.strip())
    of_files = {p.stem: len(p.read_text().splitlines()) for p in (ROOT / "registry").glob("*.jsonl")}
    assert counts.keys() >= of_files.keys()
    assert {name: int(counts[name].rstrip("+")) for name in of_files} == of_files
    assert "d4rl/hopper-medium-v2" in rlds(clean, "list", "hopper", "medium")


def test_rlds_info_in_a_clean_environment(clean):
    assert "145.7 MiB to download" in rlds(clean, "info", "d4rl/hopper-medium-v2")
    assert rlds(clean, "--version").startswith("rlds ")
    assert " -O3 " in rlds(clean, "--version", "--verbose")  # how the kernel in the wheel was compiled
    where = [
        clean / "bin" / "python",
        "-c",
        "from rlds_cli.base.files.packaged import registry_directory; print(registry_directory())",
    ]
    found = subprocess.run(where, capture_output=True, text=True, check=True, cwd=clean).stdout.strip()
    assert found.startswith(str(clean)) and found.endswith("rlds_cli/_registry")
