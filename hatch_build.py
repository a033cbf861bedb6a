"""Compile the C files when a wheel or an editable install is made: the loader's kernel and its batches, and sha256.

The compiler is the first of $CC, cc, gcc and clang that works. If there is none, the build asks for ziglang, a package
on PyPI with zig's C compiler. RLDS_WHEEL=TAG (a key of ``PLATFORMS``) makes a wheel for another platform with zig.

Usage: python hatch_build.py [--platforms]        compiles those of this checkout; --platforms: prints the tags
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

HERE = Path(__file__).parent
LIBRARIES = {  # in the sources and in a wheel: what each is made of
    "rlds_cli/loader/_kernel.so": "rlds_cli/loader/kernel.c",
    "rlds_cli/loader/_slabs.so": "rlds_cli/loader/slabs.c",
    "rlds_cli/base/files/_sha256.so": "rlds_cli/base/files/sha256.c",
}
RECORD = "rlds_cli/loader/_kernel.json"  # of the compiler and its flags
FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off")
ZIG = "ziglang==0.17.1"  # as in constraints.txt; it makes what users run
PLATFORMS = {  # a wheel's tag: zig's name of the target
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
PROBE = """
#include <math.h>
#include <stdint.h>
#include <string.h>
unsigned __int128 probe(double x) { return (unsigned __int128)floor(x); }
"""
NO_COMPILER = (
    "Parts of rlds are written in C, and no C compiler works here: install one (Debian, Ubuntu: apt-get"
    " install gcc libc6-dev; macOS: xcode-select --install), or the Python package ziglang."
)


class CannotCompile(Exception):
    """No compiler works, or it refuses a source."""


class Compiler(NamedTuple):  # no dataclass: hatchling loads this file without a module in sys.modules
    """A C compiler: its command, and the flags that choose the platform."""

    command: tuple[str, ...]
    platform: tuple[str, ...] = ()

    def compile(self, source: Path, library: Path, flags: tuple[str, ...]) -> None:
        """Compile a shared library.

        Raises
        ------
        CannotCompile
            The compiler cannot be run, or reports an error.
        """
        macos = "macos" in self.platform[-1] if "-target" in self.platform else sys.platform == "darwin"
        maths = () if macos else ("-lm",)
        with _zig_caches() as environment:
            command = [*self.command, *flags, *self.platform, "-o", str(library), str(source), *maths]
            try:
                done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            except OSError as e:
                raise CannotCompile(f"{shlex.join(self.command)} cannot be run: {e.strerror}.") from e
        if done.returncode or not library.exists():
            raise CannotCompile(f"{source.name} does not compile with {shlex.join(command)}\n{done.stderr.strip()}")

    @property
    def name(self) -> str:
        """Name and version, such as ``cc 12.2.0``."""
        zig = "ziglang" in self.command
        question = [*self.command[:-1], "version"] if zig else [*self.command, "--version"]
        said = subprocess.run(question, capture_output=True, text=True, check=False).stdout.partition("\n")[0]
        versions = re.findall(r"\d+(?:\.\d+)+", re.sub(r"\(.*?\)", "", said))
        name = "zig cc" if zig else Path(self.command[0]).name
        family = " (clang)" if "clang" in said and "clang" not in name else ""
        return " ".join([name, *versions[-1:]]) + family


def installed() -> Compiler | None:
    """Return the first C compiler of this machine that works; None if there is none."""
    chosen = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    for command in [*chosen, ["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]) and _works(found := Compiler(tuple(command))):
            return found
    return None


def compiler(tag: str = "") -> Compiler:
    """Return the compiler for a wheel's tag; without one, for this machine.

    Raises
    ------
    CannotCompile
        There is no compiler, or the tag is unknown.
    """
    if tag and tag not in PLATFORMS:
        raise CannotCompile(f"RLDS_WHEEL={tag} is not one of {', '.join(PLATFORMS)}.")
    found = None if tag else installed()
    if found is None and find_spec("ziglang"):
        # Without a target zig would use all instructions of this processor, and the home may be shared with others.
        platform = ("-target", PLATFORMS[tag]) if tag else ("-mcpu=baseline",)
        found = Compiler((sys.executable, "-m", "ziglang", "cc"), platform)
    if found is None:
        raise CannotCompile(NO_COMPILER)
    return found


def build(root: Path, tag: str = "", flags: tuple[str, ...] = FLAGS) -> None:
    """Compile the libraries into a directory, with a record of how; existing files are replaced.

    Raises
    ------
    CannotCompile
        There is no compiler, or it refuses a source.
    """
    found = compiler(tag)
    given = () if "ziglang" in found.command else found.command[1:]  # CC="gcc -m64"
    about = {"compiler": found.name, "flags": " ".join([*given, *flags, *found.platform])}
    for name in LIBRARIES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as work:  # a process that has mapped the old library keeps it
        made = {name: Path(work, Path(name).name) for name in (*LIBRARIES, RECORD)}
        try:
            for name, source in LIBRARIES.items():
                found.compile(HERE / source, made[name], flags)
        except CannotCompile as e:
            raise e if _works(found) else CannotCompile(NO_COMPILER) from e
        made[RECORD].write_text(json.dumps(about) + "\n")
        for name, file in made.items():
            file.replace(root / name)


def _works(found: Compiler) -> bool:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "probe.c")
        source.write_text(PROBE)
        try:
            found.compile(source, Path(work, "probe.so"), FLAGS)
        except CannotCompile:
            return False
    return True


@contextmanager
def _zig_caches() -> Iterator[dict[str, str]]:
    """Yield an environment in which zig leaves nothing behind, and needs no home directory."""
    with tempfile.TemporaryDirectory() as work:
        yield {"ZIG_GLOBAL_CACHE_DIR": work, "ZIG_LOCAL_CACHE_DIR": work, **os.environ}


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling's hook for wheels: it is asked for requirements, then called before and after the files are packed."""

    def dependencies(self) -> list[str]:
        """Return zig as a requirement of the build if it is needed."""
        return [ZIG] if os.environ.get("RLDS_WHEEL") or installed() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernel: into the checkout if the install is editable, else into the wheel."""
        tag = os.environ.get("RLDS_WHEEL", "")
        try:
            if version == "editable":
                build(HERE)
                return
            self._made = tempfile.TemporaryDirectory()
            build(Path(self._made.name), tag)
        except CannotCompile as e:
            self.app.abort(str(e))
        for name in (*LIBRARIES, RECORD):
            build_data["force_include"][str(Path(self._made.name, name))] = name
        # ctypes loads the library, so that one wheel fits every version of Python 3.
        local = next(t for t in platform_tags() if not t.startswith(("manylinux", "musllinux")))
        build_data["tag"] = f"py3-none-{tag or local}"
        build_data["pure_python"] = False

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory of the wheel's libraries."""
        if version != "editable":
            self._made.cleanup()


def main() -> int:
    """Compile the libraries of this checkout, and say with what; return 1 if that fails."""
    if "--platforms" in sys.argv:
        print(*PLATFORMS)
        return 0
    try:
        build(HERE)
    except CannotCompile as e:
        print(e, file=sys.stderr)
        return 1
    record = json.loads((HERE / RECORD).read_text())
    print(f"kernel: {record['compiler']} {record['flags']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
