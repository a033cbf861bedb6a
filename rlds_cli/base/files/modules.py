"""Python files that the user names, such as ``lab.py``, run as modules."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _ReadSource(SourceFileLoader):
    """Runs the source that was hashed: a .pyc may be of other source, of equal size and written in the same second."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self.path)


@contextmanager
def importable(path: tuple[str, ...]) -> Iterator[None]:
    """Put ``path`` first in the search for modules, as ``python -m`` does; workers inherit it."""
    added = [p for p in path if p not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for p in added:
            if p in sys.path:
                sys.path.remove(p)


def load(file: Path, kind: str) -> ModuleType:
    """Import a file as a module with a unique name, once per content.

    Parameters
    ----------
    file : Path
    kind : str
        Begins the name of the module, as in ``rlds_function_...``.

    Raises
    ------
    OSError
        The file cannot be read.
    BaseException
        Whatever the file raises.
    """
    data = file.read_bytes()
    name = f"rlds_{kind}_{file.stem}_{hashlib.sha256(str(file).encode() + data).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _ReadSource(name, str(file), data)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def line_of_import(e: BaseException) -> str:
    """Name the line at which an import failed, in parentheses; empty for a SyntaxError, whose message includes it."""
    if isinstance(e, SyntaxError):
        return ""
    ours = str(Path(__file__).parents[2])
    frames = [
        f for f in traceback.extract_tb(e.__traceback__) if "importlib" not in f.filename and ours not in f.filename
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
