"""Print the names that cross the borders of rooms, and those that go past a face.

Usage: python scripts/doors.py [ROOM] [--past]

A room is a folder of ``rlds_cli``. `base`, `errors`, aliases, and ``__init__`` and ``__main__`` of the package are the
ground: names of these are not counted. A name crosses where a module of another room uses it, however it is imported:

    from rlds_cli.store import open_store           open_store
    import rlds_cli.store.tags as t; t.read         tags.read
    import rlds_cli.store.tags                      rlds_cli.store.tags.read: tags.read
    from rlds_cli.store import tags; f(tags)        tags.*, a module that is handed on
    from rlds_cli.store.tags import *               all public names of tags
    from rlds_cli.store import Helpers              Helpers.a and Helpers.b, where the class only bundles functions

Uses in annotations alone are told apart: types of results are no doors. A room's face is the ``__all__`` of its
``__init__``; a name is past the face where it is used otherwise. With ROOM: its names, and the rooms that use each;
``--past`` shows those past the face alone.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "rlds_cli"
ROOMS = (
    *("cli", "view", "keep", "share", "preprocess", "loader", "look", "make"),
    *("dataset", "archives", "places", "store", "registry", "homes", "ted"),
)
PARTS: dict[str, str] = {}  # folders that lie elsewhere, and the rooms that they belong to
_HANDED_ON = "*"

_Nodes = list[tuple[ast.AST, bool]]  # and whether each is inside of an annotation
Name = tuple[str, ...]  # below the package: names of modules, then that of what is in the last one


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a name of another room."""

    user: str  # the room
    room: str  # that the name is of
    name: Name
    annotation: bool


@dataclass(kw_only=True)
class Doors:
    """What crosses the borders: for each name the rooms that use it, and those that do more than annotate with it."""

    users: dict[Name, set[str]] = field(default_factory=lambda: defaultdict(set))
    used: dict[Name, set[str]] = field(default_factory=lambda: defaultdict(set))
    faces: dict[str, frozenset[str] | None] = field(default_factory=dict)

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """(room that uses, room that is used)."""
        return {(user, room_of(name)) for name, users in self.users.items() for user in users}

    def of(self, room: str) -> list[Name]:
        """Names of a room that others use, annotations included."""
        return sorted(name for name in self.users if room_of(name) == room)

    def past(self) -> list[Name]:
        """Names that are used past the face of their room."""
        return sorted(name for name in self.used if not self._in_face(name))

    def _in_face(self, name: Name) -> bool:
        return name[0] in self.faces and len(name) > 1 and name[1] in (self.faces[name[0]] or ())


def room_of(name: Name) -> str:
    """The room of a module or name; empty for the ground."""
    room = PARTS.get(name[0], name[0]) if name else ""
    return room if room in ROOMS else ""


def doors(root: Path = ROOT) -> Doors:
    """Read all files below ``root``; nothing is imported."""
    collected = gc.isenabled()
    gc.disable()  # which would look at the growing trees again and again: it takes three times as long
    try:
        package = _Package(root)
        found = Doors(faces={room: package.listed((room,)) for room in ROOMS if package.is_module((room,))})
        for use in package.uses():
            found.users[use.name].add(use.user)
            if not use.annotation:
                found.used[use.name].add(use.user)
        return found
    finally:
        if collected:
            gc.enable()


class _Package:
    """The files of a package, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees: dict[Name, ast.Module] = {}
        self.packages: set[Name] = set()
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
                self.packages.add(parts)
            self.trees[parts] = ast.parse(path.read_text())

    def is_module(self, name: Name) -> bool:
        return name in self.trees

    def listed(self, module: Name) -> frozenset[str] | None:
        """Names in ``__all__`` of a module; None without one."""
        for node in self.trees[module].body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                value = node.value  # type: ignore[attr-defined]
                return frozenset(
                    e.value for e in ast.walk(value) if isinstance(e, ast.Constant) and isinstance(e.value, str)
                )
        return None

    def public(self, module: Name) -> frozenset[str]:
        """Names that a star import of a module brings."""
        listed = self.listed(module)
        if listed is not None:
            return listed
        found: set[str] = set()
        for node in self.trees[module].body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        return frozenset(name for name in found if not name.startswith("_"))

    def bundles(self, name: Name) -> bool:
        """Whether a name is a class or an object that only bundles functions."""
        for node in self.trees[name[:-1]].body:
            if isinstance(node, ast.ClassDef) and node.name == name[-1]:
                held = [n for n in node.body if not _is_docstring(n)]
                return bool(held) and not node.bases and all(map(_is_static, held))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = node.value.func
                kind = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
                if kind == "SimpleNamespace" and any(
                    isinstance(t, ast.Name) and t.id == name[-1] for t in node.targets
                ):
                    return True
        return False

    def uses(self) -> Iterator[Use]:
        """All uses of names of other rooms."""
        for module, tree in self.trees.items():
            user = room_of(module)
            if not user:
                continue
            nodes = _nodes(tree)
            local = self._imported(module, nodes)
            for name in local.pop(_HANDED_ON, ()):  # names that star imports bring
                if room_of(name) not in ("", user):
                    yield Use(user=user, room=room_of(name), name=name, annotation=False)
            for name, annotation in self._used(nodes, {k: v[0] for k, v in local.items()}):
                if room_of(name) not in ("", user):
                    yield Use(user=user, room=room_of(name), name=name, annotation=annotation)

    def _imported(self, module: Name, nodes: _Nodes) -> dict[str, list[Name]]:
        """Names here, and what they are below the package; those of star imports under `*`."""
        package, local = self.root.name, defaultdict[str, list[Name]](list)
        for node, _ in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top, *below = alias.name.split(".")
                    if top == package:
                        local[alias.asname or top] = [tuple(below) if alias.asname else ()]
            elif isinstance(node, ast.ImportFrom):
                parts = (node.module or "").split(".") if node.module else []
                if node.level:
                    here = module if module in self.packages else module[:-1]
                    base = (*here[: len(here) - node.level + 1], *parts)
                elif parts and parts[0] == package:
                    base = tuple(parts[1:])
                else:
                    continue
                for alias in node.names:
                    if alias.name == "*":
                        local[_HANDED_ON] += [(*base, name) for name in sorted(self.public(base))]
                    else:
                        local[alias.asname or alias.name] = [(*base, alias.name)]
        return local

    def _used(self, nodes: _Nodes, local: Mapping[str, Name]) -> Iterator[tuple[Name, bool]]:
        """(name, whether in an annotation) of every use of an imported name."""
        inner = set[ast.AST]()
        for node, annotation in nodes:  # an attribute comes before what it is an attribute of
            if not isinstance(node, ast.Name | ast.Attribute) or node in inner:
                continue
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                continue  # another thing of that name, such as a field of a class
            chain: list[str] = []
            at: ast.expr = node
            while isinstance(at, ast.Attribute):
                chain.insert(0, at.attr)
                at = at.value
                inner.add(at)
            if not isinstance(at, ast.Name) or at.id not in local:
                continue
            name = local[at.id]
            while chain and (not name or self.is_module(name)):
                name = (*name, chain.pop(0))
            if not name:
                continue  # the package itself
            if self.is_module(name):
                name = (*name, _HANDED_ON)
            elif chain and self.is_module(name[:-1]) and self.bundles(name):
                name = (*name, chain[0])
            yield name, annotation


def _nodes(tree: ast.Module) -> _Nodes:
    """All nodes of a file but contexts, outer ones first, and whether each is inside of an annotation."""
    found: _Nodes = [(tree, False)]
    for node, annotation in found:  # which grows meanwhile
        for name in node._fields:
            if name == "ctx":
                continue
            value, within = getattr(node, name), annotation or name in ("annotation", "returns")
            if isinstance(value, list):
                found += [(x, within) for x in value if isinstance(x, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append((value, within))
    return found


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_static(node: ast.stmt) -> bool:
    """Whether a statement of a class defines a function that uses neither an instance nor the class."""
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Name) for t in node.targets) and isinstance(
            node.value, ast.Name | ast.Attribute | ast.Call
        )
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list
    )


def code_lines(root: Path, room: str) -> int:
    """Lines of a room that hold code: neither blank, nor comments, nor docstrings."""
    count = 0
    for folder in (room, *(part for part, of in PARTS.items() if of == room)):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text()
            strings: set[int] = set()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.stmt) and _is_docstring(node):
                    strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            lines = enumerate(text.splitlines(), 1)
            count += sum(
                n not in strings and bool(line.strip()) and not line.lstrip().startswith("#") for n, line in lines
            )
    return count


def main(arguments: list[str]) -> None:
    """Print the names that cross."""
    found, only_past = doors(), "--past" in arguments
    past = set(found.past())
    rooms = [a for a in arguments if not a.startswith("--")]
    for room in rooms:
        for name in sorted(found.of(room), key=lambda name: (-len(found.users[name]), name)):
            if only_past and name not in past:
                continue
            note = "" if name in found.used else "   (annotations alone)"
            mark, users = "past " if name in past else "", ", ".join(sorted(found.users[name]))
            print(f"{mark:5}{'.'.join(name):60} {users}{note}")
    if rooms:
        return
    print(f"{'room':12}{'code lines':>11}{'face':>6}{'used':>6}{'by one room':>13}{'past the face':>15}")
    for room in ROOMS:
        names = [name for name in found.of(room) if name in found.used]
        one = sum(len(found.used[name]) == 1 for name in names)
        face = found.faces.get(room)
        size = "-" if face is None else str(len(face))
        beyond = sum(name in past for name in names)
        print(f"{room:12}{code_lines(ROOT, room):>11,}{size:>6}{len(names):>6}{one:>13}{beyond:>15}")
    print(f"{len(found.used)} names cross and are used ({len(found.users)} with annotations), {len(past)} past a face")
    print(f"{len(found.pairs)} pairs of rooms")


if __name__ == "__main__":
    main(sys.argv[1:])
