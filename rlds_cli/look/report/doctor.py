"""Look at the installation and the home: what works, what is missing, and what is wrong."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from rlds_cli import homes, registry
from rlds_cli.base import settings
from rlds_cli.base.files import disk
from rlds_cli.base.settings import StrPath

EXTRAS = {  # the module that each extra of the package brings
    "arrow": "pyarrow",
    "arff": "arff",
    "spaces": "gymnasium",
    "tensordict": "tensordict",
    "jax": "jax",
    "video": "av",
    "notebook": "cloudpickle",
    "buckets": "obstore",
    "ros": "mcap_ros2",
    "bags": "rosbags",
    "view": "starlette",
    "jpegxl": "imagecodecs",
    "rerun": "rerun",
    "ray": "ray",
}
_LITTLE = 1 << 30  # bytes free, below which a conversion is likely to fail
_KERNEL = Path(__file__).parents[2] / "loader" / "_kernel.so"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `examine` found.

    ``extras`` and ``missing`` are names of extras of the package, ``problems`` sentences, each with what to do.
    ``torch`` is its version, None if it is not installed. ``links`` is False if the disk of the home has no hard links.
    """

    python: str
    system: str
    torch: str | None
    compiled: bool
    extras: tuple[str, ...]
    missing: tuple[str, ...]
    home: Path
    free: int
    links: bool
    datasets: int
    shared: tuple[Path, ...]
    offline: bool
    problems: tuple[str, ...]


def installed_readers() -> tuple[str, ...]:
    """Return the names of the readers of archives: those of rlds, and those of packages that are installed."""
    from rlds_cli.archives import reader_names  # slow to start

    return tuple(reader_names())


def diagnose(*, home: StrPath | None = None) -> Diagnosis:
    """Examine the installation and the home, and ask nothing of the network.

    Whether the disk of the home has hard links is tried with a file that is removed again.
    """
    where = settings.read(home)
    present = {name: find_spec(module) is not None for name, module in EXTRAS.items()}
    free = disk.free(where.home)
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}, {settings.cores()} cores",
        torch=_version("torch"),
        compiled=_KERNEL.is_file(),
        extras=tuple(name for name, there in present.items() if there),
        missing=tuple(name for name, there in present.items() if not there),
        home=where.home,
        free=free,
        links=disk.takes_links(where.home),
        datasets=sum(len(found) for found in homes.here(where).values()),
        shared=where.search,
        offline=where.offline,
        problems=tuple(_problems(where, free)),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _problems(where: settings.Settings, free: int) -> list[str]:
    found = []
    if not _KERNEL.is_file():
        found.append("The loader's kernel is not compiled, so loading fails: install rlds again, with a C compiler.")
    if not os.access(disk.existing(where.home), os.W_OK):
        found.append(f"{where.home} cannot be written: set RLDS_HOME to a directory of yours.")
    if free < _LITTLE:
        found.append(f"{where.home} has less than 1 GiB free: rlds gc --archives, or another RLDS_HOME.")
    found += [f"{path} of RLDS_PATH is not a directory." for path in where.search if not path.is_dir()]
    found += [problem for own in registry.own_registries() for problem in own.problems]
    return found
