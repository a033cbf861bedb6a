"""Modules that are at hand as `rlds_cli.NAME`, and the rooms in which they lie."""

from __future__ import annotations

import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Each is at hand without an import of its own, and can be imported by this name, with the modules below it.
MODULES = {
    "archives": "rlds_cli.archives",
    "batch": "rlds_cli.dataset.batch",
    "errors": "rlds_cli.errors",
    "formats": "rlds_cli.archives.formats",
    "interop": "rlds_cli.archives.dropins",
    "interop.*": "rlds_cli.archives.*.dropin",  # `archives.libraries` says which there are
    "interop.record": "rlds_cli.make.record",
    "loader": "rlds_cli.loader",
    "measures": "rlds_cli.look.measures",
    "mp4": "rlds_cli.base.media.mp4",
    "preprocess": "rlds_cli.preprocess",
    "published": "rlds_cli.make.downloads.published",
    "report": "rlds_cli.look.report",
    "ted": "rlds_cli.ted",
    "view": "rlds_cli.view",
}


def real(name: str) -> str:
    """Name of the module that ``name``, below the package, stands for: ``report.comparing`` lies in ``look.report``."""
    inner = ""
    while name:
        above, _, last = name.rpartition(".")
        if name in MODULES:
            return f"{MODULES[name]}{inner}"
        if f"{above}.*" in MODULES:
            return f"{MODULES[f'{above}.*'].replace('*', last)}{inner}"
        name = above
        inner = f".{last}{inner}"
    return ""


class Aliases:
    """Finds modules by their names in the table; the rest of Python's search finds all others."""

    @classmethod
    def install(cls) -> None:
        """Ask this class about names of modules from now on."""
        if cls not in sys.meta_path:
            sys.meta_path.insert(0, cls)  # the search for files would load a second copy

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Say how to import an alias."""
        package, _, below = name.partition(".")
        if package != __package__ or real(below) in ("", name):
            return None
        from importlib.util import spec_from_loader

        return spec_from_loader(name, _Loader(real(below)))  # type: ignore[arg-type]


class _Loader:
    """Imports the module that an alias stands for: one object with two names."""

    def __init__(self, real: str) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        from importlib import import_module

        module = import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import has given it that of the alias

    def is_package(self, name: str) -> bool:
        """Return whether other modules are below it, for `python -m`."""
        return self._found().submodule_search_locations is not None

    def get_code(self, name: str) -> Any:
        """Return its code, for `python -m`."""
        found = self._found()
        return found.loader.get_code(found.name)  # type: ignore[union-attr]

    def _found(self) -> ModuleSpec:
        from importlib.util import find_spec

        found = find_spec(self.real)
        if found is None:
            raise ModuleNotFoundError(f"No module named {self.real!r}")
        return found
