"""Print the figures of the code's structure: how much there is, what imports what, and what a common task runs through.

Usage: python scripts/house.py [--json] [--no-trace]

How each figure is counted:

modules, lines       Files ``*.py`` below ``rlds_cli``, and their lines with blank ones.
circles              Sets of files that import each other, directly or through others (strongly connected components):
                     at import; with the imports inside functions; with those for type checkers, too.
                     ``from rlds_cli.a import b`` is an import of the file ``a/b.py`` where there is one, else of ``a``;
                     of the module that defines ``b``, too, where ``a`` is a face that imports ``b`` when it is used.
upward arrows        Pairs of packages of which the first imports the second against `ARROWS`, imports inside functions
                     included, those for type checkers not.
import floors        Files on the longest chain of imports at import, every circle counted as one.
class names          Names of classes that are defined in more than one file, private ones included.
relative clauses     Docstrings that start with a free relative clause, such as "What ..." or "Those that ...".
walks                Traced with ``sys.setprofile`` in all threads of a process in which everything is imported:
                     functions of ``rlds_cli`` that run in a first call of a public name, their files, and calls at
                     which the file is another than that of the call before. Other processes are left out.
touched by errands   Core files that a stateful sampler, a URL scheme and a change of a download touch: counted by hand.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAME = "rlds_cli"
WALKS = ("a download", "a first batch", "a preprocess", "a label", "a push")

# What each part of a room may import, besides itself. The parts of a room are packages below its own.
_GROUND = "base base.files base.http base.media"
_PLACES = "places.sources places.files places.urls places.remote"
_STORED = f"{_GROUND} archives.formats ted registry homes store store.growing {_PLACES}"
_BELOW = {
    "base": "",
    "base.files": "base",
    "base.media": "base base.files",
    "base.http": "base base.files",
    "places.sources": _GROUND,
    "places.files": f"{_GROUND} places.sources",
    "places.urls": f"{_GROUND} places.sources places.files",
    "archives.formats": _GROUND,
    "ted": _GROUND,
    "registry": _GROUND,
    "homes": f"{_GROUND} registry ted store",
    "archives": f"{_GROUND} archives.formats ted",
    "store": f"{_GROUND} ted",
    "store.growing": f"{_GROUND} ted store",
    "places.remote": f"{_GROUND} ted registry homes store store.growing places.sources",
    "dataset": f"{_STORED} top",  # `top` is the table of public names: methods call those of packages above by it
    "look.checks": f"{_STORED} dataset",
    "look.measures": f"{_STORED} dataset look.checks",
    "look.files": f"{_STORED} archives",
    "make.convert": f"{_STORED} dataset archives look.checks look.files",  # it records findings
    "make.downloads": f"{_STORED} dataset archives look.checks make.convert",
    "loader": f"{_STORED} dataset top",  # as `dataset`
    "preprocess": f"{_STORED} dataset",
    "look.report": f"{_STORED} dataset archives look.checks look.files",
    "look.pages": f"{_STORED} dataset archives look.checks look.report",
    "share": f"{_STORED} dataset look.report",
    "keep": f"{_STORED} dataset archives look.checks make.convert make.downloads loader preprocess share",
    "view": f"{_STORED} dataset look.checks look.measures look.report",
    # Writers and drop-ins of libraries, which are in their folders: readers, and rooms that read, import neither.
    "archives.exports": f"{_STORED} dataset archives make.convert",
    "archives.dropins": f"{_STORED} dataset archives archives.exports make.convert make.downloads loader keep",
}
ARROWS: Mapping[str, frozenset[str]] = {name: frozenset(of.split()) for name, of in _BELOW.items()} | {
    "cli": frozenset(_BELOW),  # and nobody imports cli
    "top": frozenset(),  # rlds_cli itself: it imports when a name is first used
}
# Modules and packages that count as another part than the longest name in the table that they are below; `*` is any
# second name.
_PARTS = {
    "base": "base errors",
    "make.convert": "make.importing make.record",
    "archives.exports": "archives.*.write",
    "archives.dropins": "archives.*.dropin archives.following",
    "cli": "__main__",
    "top": "aliases look make places",  # rooms whose `__init__` imports nothing
}
PLACES = {module: part for part, modules in _PARTS.items() for module in modules.split()}
AT_IMPORT, IN_FUNCTION, FOR_TYPES = range(3)

_FREE_RELATIVE = re.compile(
    r"(What(ever)?|Those|Whether|Where(ver)?|When(ever)?|Who(ever|m|se)?|Which(ever)?|How|Why|That which|The one that"
    r"|All that|Everything that|Anything that|Nothing that|As far as|As many)\b"
)


@dataclass
class Module:
    """A file: what it imports (module -> the earliest kind), its classes, its docstrings."""

    name: str
    path: Path
    tree: ast.Module
    imports: dict[str, int] = field(default_factory=dict)
    face: dict[str, str] = field(default_factory=dict)  # of a package: name that is imported when used -> its module

    @property
    def package(self) -> str:
        """Name of the package, of today or to be, that the file belongs to."""
        parts = (self.name.partition(".")[2] or "top").split(".")
        for n in range(len(parts), 0, -1):
            for name in (".".join(parts[:n]), ".".join([parts[0], "*", *parts[2:n]])):
                if name in PLACES or name in ARROWS:
                    return PLACES.get(name, name)
        return parts[0]


def read(root: Path = ROOT / NAME) -> dict[str, Module]:
    """All files by module name, parsed; nothing is imported."""
    found = {}
    collected = gc.isenabled()
    gc.disable()  # which would look at the growing trees again and again: it takes three times as long
    try:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, ast.parse(path.read_text()))
    finally:
        if collected:
            gc.enable()
    for module in found.values():
        module.face = _face(module)
    for module in found.values():
        for target, kind in _imports(module, found):
            if target != module.name:
                module.imports[target] = min(kind, module.imports.get(target, kind))
    return found


def _face(module: Module) -> dict[str, str]:
    """Names that a package imports when they are used: type checkers see an import of a module below it."""
    if module.path.name != "__init__.py" or module.name == NAME:
        return {}
    return {
        alias.asname or alias.name: node.module
        for node, kind in _statements(module.tree.body, AT_IMPORT)
        if kind == FOR_TYPES and isinstance(node, ast.ImportFrom) and f"{node.module}".startswith(f"{module.name}.")
        for alias in node.names
    }


def _imports(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
    faces: dict[str, Module] = {}  # by the name that they have here
    for target, alias, kind in _targets(module, known):
        face = known[target].face
        if target in module.face.values() and kind == FOR_TYPES:
            continue
        yield target, kind
        if alias.name in face:
            yield face[alias.name], kind
        elif face:
            faces[alias.asname or alias.name] = known[target]
    for node in ast.walk(module.tree) if faces else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in faces:
            names = faces[node.value.id].face
            if node.attr in names:
                yield names[node.attr], IN_FUNCTION


def _targets(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[str, ast.alias, int]]:
    """Modules that a file imports, with the name that it writes."""
    for node, kind in _statements(module.tree.body, AT_IMPORT):
        if isinstance(node, ast.Import):
            yield from ((a.name, a, kind) for a in node.names if a.name in known)
            continue
        base = node.module or ""
        if node.level:
            own = module.name.split(".") + (["x"] if module.path.name == "__init__.py" else [])
            base = ".".join([*own[: -node.level], *filter(None, [node.module])])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            if name in known:
                yield name, alias, kind
            elif base in known and base != NAME:
                yield base, alias, kind


def _statements(body: list[ast.stmt], kind: int) -> Iterator[tuple[Any, int]]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, kind
            continue
        inner = kind
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = max(kind, IN_FUNCTION)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from _statements(node.body, FOR_TYPES)
            yield from _statements(node.orelse, kind)
            continue
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for part in getattr(node, name, ()):
                if isinstance(part, ast.stmt):
                    yield from _statements([part], inner)
                elif hasattr(part, "body"):
                    yield from _statements(part.body, inner)


def graph(modules: Mapping[str, Module], most: int) -> dict[str, list[str]]:
    """Imports of each module, of kinds up to ``most``; without those for types of the table of public names."""
    ends = {NAME: min(most, IN_FUNCTION)}
    return {n: sorted(t for t, kind in m.imports.items() if kind <= ends.get(n, most)) for n, m in modules.items()}


def components(edges: Mapping[str, list[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan), those imported first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in edges:
        if node not in index:
            visit(node)
    return found


def circles(modules: Mapping[str, Module], most: int) -> list[list[str]]:
    """Sets of modules that import each other, by imports of kinds up to ``most``."""
    return sorted(c for c in components(graph(modules, most)) if len(c) > 1)


def floors(modules: Mapping[str, Module]) -> int:
    """Modules on the longest chain of imports, every circle counted as one."""
    edges = graph(modules, AT_IMPORT)
    height: dict[str, int] = {}
    for component in components(edges):  # what a component imports comes before it
        below = (height[t] for name in component for t in edges[name] if t not in component)
        height |= dict.fromkeys(component, 1 + max(below, default=0))
    return max(height.values())


def upward(modules: Mapping[str, Module]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Imports against `ARROWS`: pairs of modules, by pair of packages."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, module in modules.items():
        for target, kind in sorted(module.imports.items()):
            a, b = module.package, modules[target].package
            if kind > IN_FUNCTION or a == b or a == "top" or (b == "top" and target != NAME):
                continue  # of a room of several parts, the modules of the names that are used count
            if b not in ARROWS.get(a, frozenset()):
                found.setdefault((a, b), []).append((name, target))
    return found


def repeated_classes(modules: Mapping[str, Module]) -> dict[str, int]:
    """Names of classes that several modules define, and how many do."""
    names = Counter(
        name
        for m in modules.values()
        for name in {node.name for node in ast.walk(m.tree) if isinstance(node, ast.ClassDef)}
    )
    return {name: n for name, n in sorted(names.items()) if n > 1}


def relative_docstrings(modules: Mapping[str, Module]) -> list[str]:
    """``module:line first words`` of docstrings that start with a free relative clause."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = []
    for m in modules.values():
        for node in ast.walk(m.tree):
            docstring = ast.get_docstring(node) if isinstance(node, kinds) else None
            if docstring and _FREE_RELATIVE.match(docstring):
                found.append(f"{m.name}:{getattr(node, 'lineno', 1)} {docstring.splitlines()[0]}")
    return found


# -- what a common task runs through


class Trace:
    """Counts the functions that run, their files, and the switches between these."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.switches = 0
        self._last = threading.local()
        self._below = str(ROOT / NAME) + os.sep

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """Take note of a call."""
        code = frame.f_code
        named = code.co_name != "<module>" and code.co_flags & CO_NEWLOCALS
        if event != "call" or not named or not code.co_filename.startswith(self._below):
            return
        self.functions.add((code.co_filename, code.co_qualname))
        self.switches += code.co_filename != getattr(self._last, "file", code.co_filename)
        self._last.file = code.co_filename

    def of(self, task: Callable[[], object]) -> dict[str, int]:
        """Run ``task``: its functions, modules and switches."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            task()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # None is allowed
        modules, inside = {file for file, _ in self.functions}, ("comp>", "genexpr>")
        return {
            "functions": len(self.functions),
            "of them comprehensions and generator expressions": sum(n.endswith(inside) for _, n in self.functions),
            "modules": len(modules),
            "switches": self.switches,
        }


def _scaled(episode: dict[str, Any]) -> dict[str, Any]:
    return {**episode, "action": episode["action"] * 2}


def walk(name: str) -> dict[str, int]:
    """Trace one of `WALKS` in this process, in a fresh home; every module was imported before."""
    import rlds_cli
    from rlds_cli.errors import MissingPackage

    for module in pkgutil.walk_packages(rlds_cli.__path__, "rlds_cli.", onerror=lambda _: None):
        with suppress(ImportError, MissingPackage):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    sample = "sample/pendulum-d4rl"
    if name == "a download":
        return Trace().of(lambda: rlds_cli.download(sample))
    rlds_cli.download(sample)
    batches: Iterator[Any] = iter(())
    if name == "a first batch":
        batches = iter(rlds_cli.Loader(sample, 256, backend="numpy"))
    tasks: dict[str, Callable[[], object]] = {
        "a first batch": lambda: next(batches),
        "a preprocess": lambda: rlds_cli.preprocess.run(sample, _scaled, "scaled", jobs=0),
        "a label": lambda: rlds_cli.load(sample).label(quality="good", where="episode in [3, 7]", name="labelled"),
        "a push": lambda: rlds_cli.push(sample, f"{os.environ['RLDS_HOME']}/pushed"),
    }
    return Trace().of(tasks[name])


def walks() -> dict[str, dict[str, int]]:
    """Trace each of `WALKS` in a process of its own."""
    found = {}
    for name in WALKS:
        with tempfile.TemporaryDirectory() as home:
            told = subprocess.run(
                [sys.executable, __file__, "--walk", name],
                env={**os.environ, "RLDS_HOME": home, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
        found[name] = json.loads(told.stdout)
    return found


def figures(trace: bool = True) -> dict[str, Any]:
    """All figures by name."""
    modules = read()
    kinds = {"at import": AT_IMPORT, "with functions": IN_FUNCTION, "with types": FOR_TYPES}
    return {
        "modules": len(modules),
        "lines": sum(len(m.path.read_text().splitlines()) for m in modules.values()),
        "circles": {name: [len(c) for c in circles(modules, most)] for name, most in kinds.items()},
        "upward arrows": {f"{a} -> {b}": len(pairs) for (a, b), pairs in sorted(upward(modules).items())},
        "import floors": floors(modules),
        "class names defined more than once": repeated_classes(modules),
        "docstrings that start with a relative clause": len(relative_docstrings(modules)),
        "core files touched by errands": "counted by hand: a stateful sampler; a URL scheme; a change of a download",
        **({"walks": walks()} if trace else {}),
    }


def _line(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{k} {v}" if not isinstance(v, list) else f"{k} {len(v)} {v}" for k, v in value.items())
        return f"{name}: {len(value)}: {inner}" if "circles" not in name else f"{name}: {inner}"
    return f"{name}: {value}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--walk" in sys.argv:
        print(json.dumps(walk(sys.argv[-1])))
        sys.exit()
    found = figures(trace="--no-trace" not in sys.argv)
    print(json.dumps(found, indent=1) if "--json" in sys.argv else "\n".join(_line(k, v) for k, v in found.items()))
