"""Run the tests of C code, compiled so that AddressSanitizer and UndefinedBehaviorSanitizer watch it.

The package is copied with such libraries, since a process can load them only with the sanitizer's library. Tests whose
names have jax in them, one of tests/loader/test_loader_scalars.py among them, are left out: exceptions in jaxlib end a
process with these libraries.

Usage: python scripts/test_native.py [TEST...]        default: of the loader, of sha256; needs gcc or clang on Linux
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import hatch_build  # noqa: E402

SANITIZE = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
RUNTIMES = ("libasan.so", "libclang_rt.asan-x86_64.so", "libclang_rt.asan-aarch64.so", "libclang_rt.asan.so")
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # Python leaves memory to the system when it ends
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # arrays of its own are guarded as well
}


def runtime(compiler: hatch_build.Compiler) -> str | None:
    """Return the path of the sanitizer's shared library; None if the compiler has none."""
    for name in RUNTIMES:
        question = [*compiler.command, f"-print-file-name={name}"]
        path = subprocess.run(question, capture_output=True, text=True, check=False).stdout.strip()
        if path != name and Path(path).is_file():
            return str(Path(path).resolve())
    return None


def main(tests: list[str]) -> int:
    """Run the tests; return pytest's exit code, or 2 without a compiler that has the sanitizers."""
    compiler = hatch_build.installed()
    library = compiler and runtime(compiler)
    if compiler is None or library is None or sys.platform != "linux":
        print("make test-native needs Linux, and gcc or clang with AddressSanitizer.", file=sys.stderr)
        return 2
    shared = ("-shared-libasan",) if "clang_rt" in library else ()
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(ROOT / "rlds_cli", Path(work, "rlds_cli"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(work, "registry").symlink_to(ROOT / "registry")
        hatch_build.build(Path(work), flags=(*hatch_build.FLAGS[1:], *SANITIZE, *shared))
        print(f"{compiler.name}, {library}; without the tests of jax, see {Path(__file__).name}", file=sys.stderr)
        chosen = tests or sorted(
            str(p) for name in ("test_loader_*.py", "test_sha256.py") for p in (ROOT / "tests").rglob(name)
        )
        command = [
            str(Path(sys.executable).with_name("pytest")),
            "-p",
            "no:cacheprovider",
            "--capture=sys",
            "-m",
            "not slow and not thorough",
            "-k",
            "not jax",
            *chosen,
        ]
        environment = os.environ | OPTIONS | {"LD_PRELOAD": library, "PYTHONPATH": work, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
