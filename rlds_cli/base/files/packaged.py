"""Files that come with the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def registry_directory() -> Path:
    """Return the directory of the registry: beside the package in a checkout, inside it in a wheel."""
    installed = _PACKAGE / "_registry"
    return installed if installed.is_dir() else _PACKAGE.parent / "registry"
