"""The build hook: which compiler is taken, what is asked for, what ends up in the checkout or the wheel."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOOK = ROOT / "hatch_build.py"
SOURCES = "loader/kernel.c", "loader/slabs.c", "base/files/sha256.c"
LIBRARIES = "loader/_kernel.so", "loader/_slabs.so", "base/files/_sha256.so"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no cc here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that compiling needs, in a directory of their own, with sources that are compiled at once."""
    for source in SOURCES:
        place = tmp_path / "checkout" / "rlds_cli" / source
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('__attribute__((visibility("default"))) int rlds_none(void) { return 0; }\n')
    shutil.copy(HOOK, tmp_path / "checkout")
    return tmp_path / "checkout"


def compiling(checkout: Path, path: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "hatch_build.py"]
    return subprocess.run(command, cwd=checkout, env={"PATH": path} | variables, capture_output=True, text=True)


def script(directory: Path, name: str, body: str) -> str:
    directory.mkdir(exist_ok=True)
    file = directory / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(directory)


def record(checkout: Path) -> dict[str, str]:
    return json.loads((checkout / "rlds_cli/loader/_kernel.json").read_text())


def test_a_kernel_that_loads_and_a_record_of_how_it_was_made(checkout: Path) -> None:
    """Of small sources: those of the package are compiled where it is installed, and the tests of loaders call them."""
    done = compiling(checkout, os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    about = record(checkout)
    assert about["compiler"].startswith("cc ") and about["flags"].startswith("-O3 -std=c11 ")
    assert done.stdout == f"kernel: {about['compiler']} {about['flags']}\n"
    for library in LIBRARIES:
        assert ctypes.CDLL(str(checkout / "rlds_cli" / library)).rlds_none
    files = {str(p.relative_to(checkout)) for p in checkout.rglob("*") if p.is_file()}
    package = {f"rlds_cli/{name}" for name in (*SOURCES, *LIBRARIES, "loader/_kernel.json")}
    assert files == package | {"hatch_build.py"}


def test_a_compiler_that_does_not_work_is_passed_over(checkout: Path, tmp_path: Path) -> None:
    broken = script(tmp_path / "bin", "cc", "exit 1")
    done = compiling(checkout, f"{broken}:{os.environ['PATH']}", CC="no-such-compiler")
    assert done.returncode == 0, done.stderr
    assert record(checkout)["compiler"].startswith(("gcc ", "clang "))


def test_cc_is_tried_first_with_its_options(checkout: Path, tmp_path: Path) -> None:
    found = shutil.which("cc")
    mine = script(tmp_path / "bin", "mycc", f'exec {found} "$@"')
    assert compiling(checkout, f"{mine}:{os.environ['PATH']}", CC="mycc -DMINE").returncode == 0
    assert record(checkout)["compiler"].startswith("mycc ") and record(checkout)["flags"].startswith("-DMINE -O3 ")


@pytest.mark.thorough
def test_without_any_compiler_one_sentence_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    broken = script(tmp_path / "bin", "cc", "exit 1")
    done = compiling(checkout, broken)
    assert done.returncode == 1 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "apt-get install gcc" in done.stderr and "ziglang" in done.stderr


def test_errors_of_the_compiler_are_shown(checkout: Path) -> None:
    (checkout / "rlds_cli/loader/kernel.c").write_text("int broken(")
    done = compiling(checkout, os.environ["PATH"])
    assert done.returncode == 1 and "kernel.c does not compile with cc" in done.stderr and "error:" in done.stderr


@pytest.mark.parametrize(("variables", "wanted"), [({}, []), ({"RLDS_WHEEL": "musllinux_1_2_aarch64"}, ["ziglang"])])
def test_zig_is_required_only_where_it_is_needed(variables: dict[str, str], wanted: list[str]) -> None:
    code = "from hatchling.build import *; print(*get_requires_for_build_wheel(), *get_requires_for_build_sdist())"
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert [r.partition("==")[0] for r in done.stdout.split()] == wanted, done.stderr


def test_zig_is_required_without_a_compiler(tmp_path: Path) -> None:
    code = "from hatchling.build import *; print(*get_requires_for_build_editable())"
    environment = {"PATH": script(tmp_path / "bin", "cc", "exit 1")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    (wanted,) = [r for r in done.stdout.split() if r.startswith("ziglang")]
    assert wanted in (ROOT / "constraints.txt").read_text().splitlines(), done.stderr


def test_every_version_is_given_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 50 and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pins)
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in pins]
    assert len({*names}) == len(names)
    assert {"torch", "torchrl", "tensordict", "ziglang", "hatchling"} <= {*names}


@pytest.mark.slow
def test_a_wheel_holds_the_kernel_and_fits_every_python_3_of_its_platform(tmp_path: Path) -> None:
    before = (ROOT / "rlds_cli/loader/_kernel.so").stat().st_mtime_ns
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    if sys.platform == "linux":
        assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_')}.whl")
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        for name in (*LIBRARIES, "loader/_kernel.json"):
            assert names.count(f"rlds_cli/{name}") == 1
        assert json.loads(z.read("rlds_cli/loader/_kernel.json"))["compiler"]
    (sdist,) = tmp_path.glob("*.tar.gz")
    listed = subprocess.run(["tar", "tzf", sdist], capture_output=True, text=True, check=True).stdout
    assert "/hatch_build.py\n" in listed and ".so\n" not in listed and "/_kernel." not in listed
    for name in SOURCES:
        assert f"/rlds_cli/{name}\n" in listed
    assert (ROOT / "rlds_cli/loader/_kernel.so").stat().st_mtime_ns == before  # that of the checkout is left alone
