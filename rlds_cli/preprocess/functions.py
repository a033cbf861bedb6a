"""Find the user's function by name, load it in worker processes, and identify it by a hash of its sources."""

from __future__ import annotations

import functools
import hashlib
import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from rlds_cli.base import settings, text
from rlds_cli.base.files import modules
from rlds_cli.base.files.modules import importable
from rlds_cli.base.text import did_you_mean
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import builtin, sources
from rlds_cli.preprocess.sources import Files, LockedFunction, UserModules

UNITS = ("episode", "batch", "step", "window")
_UNIT, _SPAN = "__rlds_unit__", "__rlds_span__"
_FORM = (
    "MODULE:FUNCTION, as in my_prep:norm; FILE.py:FUNCTION, as in prep/my_prep.py:norm (FILE.py alone if it defines one"
    " function); or a built-in name"
)

F = TypeVar("F", bound=Callable[..., Any])


def unit(kind: str, *, history: int = 0, future: int = 0) -> Callable[[F], F]:
    """Declare the unit of a preprocess function: what one call receives. A decorator.

    Parameters
    ----------
    kind : {"episode", "batch", "step", "window"}
        One whole episode (the default), many transitions, one transition, or many transitions with their neighbours.
        ``--unit`` and ``unit=`` override it.
    history, future : int
        Steps of a window before and after its own step; it has ``history + 1 + future`` steps.

    Raises
    ------
    PreprocessError
        The kind is unknown, or a number is not a count of steps.

    Examples
    --------
    >>> @unit("batch")
    ... def halve(batch):
    ...     batch["next"]["reward"] /= 2
    ...     return batch
    >>> @unit("window", history=3)
    ... def smooth(window):
    ...     return {"smooth": window["action"].mean(1)}
    """
    check_unit(kind, history, future)

    def mark(function: F) -> F:
        setattr(function, _UNIT, kind)
        setattr(function, _SPAN, (history, future))
        return function

    return mark


def check_unit(kind: str, history: int = 0, future: int = 0) -> None:
    """Raise PreprocessError unless ``kind`` is a unit, and ``history`` and ``future`` suit it."""
    if kind not in UNITS:
        raise PreprocessError(f'There is no unit "{kind}".', hint=f"one of {', '.join(UNITS)}")
    for name, steps in (("history", history), ("future", future)):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise PreprocessError(f"{name}={steps!r} is not a number of steps.")
        if steps and kind != "window":
            raise PreprocessError(f"{name}={steps} is for unit window; the unit is {kind}.", hint="unit=window")


@dataclass(frozen=True)
class Function:
    """A user's function, which other processes can load if it is in a module or can be pickled.

    ``reference`` is the name that users write. ``code`` is the hash of its sources, which ``files`` lists. ``path`` are
    directories to search its modules in.
    """

    reference: str
    name: str
    code: str
    files: Files = ()
    module: str | None = None
    file: str | None = None
    pickled: bytes | None = None
    path: tuple[str, ...] = ()
    uses_torch: bool = False  # its source mentions torch, perhaps in an import that runs in the middle of a call
    call: Callable[..., Any] | None = field(default=None, compare=False)

    @property
    def portable(self) -> bool:
        """True if a worker process can load the function."""
        return bool(self.module or self.file or self.pickled)

    def load(self) -> Callable[..., Any]:
        """Return the function itself, imported or unpickled if needed."""
        if self.call is not None:
            return self.call
        if self.pickled is not None:
            return pickle.loads(self.pickled)  # type: ignore[no-any-return]  # pickled by this program in the same run
        module = _load_file(Path(self.file)) if self.file else importlib.import_module(self.module or "")
        return _attribute(module, self.name, self.reference)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "call": None}

    @property
    def unit(self) -> str | None:
        """The unit that its decorator declares, if any."""
        return marked(self.call)[0]

    @property
    def span(self) -> tuple[int, int]:
        """History and future that its decorator declares."""
        return marked(self.call)[1]


def first_pass(call: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return ``fit`` and ``merge`` of a function with a first pass: attributes of it or of a callable object.

    Raises
    ------
    PreprocessError
        It has only one of them.
    """
    while isinstance(call, functools.partial):
        call = call.func
    fit, merge = getattr(call, "fit", None), getattr(call, "merge", None)
    if fit is None and merge is None:
        return None
    if not callable(fit) or not callable(merge):
        name = getattr(call, "__name__", type(call).__name__)
        there, missing = ("fit", "merge") if callable(fit) else ("merge", "fit")
        raise PreprocessError(
            f"{name} has {there} but no {missing}.",
            hint="a first pass needs fit(batch, state), which returns the state, and merge(a, b), which joins two",
        )
    return fit, merge


def marked(call: Any) -> tuple[str | None, tuple[int, int]]:
    """Return the unit that a decorator declares, and history and future of its windows."""
    while isinstance(call, functools.partial):
        call = call.func
    method = type(call).__call__  # of a callable object
    kind = getattr(call, _UNIT, None) or getattr(method, _UNIT, None)
    return kind, getattr(call, _SPAN, None) or getattr(method, _SPAN, None) or (0, 0)


def find_function(fn: str | Callable[..., Any] | Function) -> Function:
    """Return the function that ``fn`` names or is.

    Raises
    ------
    PreprocessError
        It is not found; the message lists the searched directories and similar names.
    """
    if isinstance(fn, Function):
        return fn
    if isinstance(fn, str):
        return _referenced(fn)
    if isinstance(fn, list | tuple):
        raise PreprocessError(
            f"{len(fn)} functions: one is run at a time.", hint="run the next one on the result of the one before"
        )
    if not callable(fn):
        raise PreprocessError(f"{fn!r} is not a function.", hint=f"a function, or {_FORM}")
    if isinstance(fn, FunctionType) and builtin.traits_of(fn).version:
        return _built_in(fn)
    return _given(fn)


def load_locked(found: LockedFunction) -> Function:
    """Import a function that a lock names; call it inside `sources.from_source`.

    Raises
    ------
    PreprocessError
        It cannot be imported, or the import is not the file that was found.
    """
    function = find_function(found.reference)
    call = function.call
    module = sys.modules.get(str(getattr(call, "__module__", "")))
    where = getattr(module, "__file__", None)
    if function.files != found.files or where is None or Path(where).resolve() != found.file:
        raise sources.refused(found.reference, f"what is imported under that name is not defined in {found.file}")
    return function


def _referenced(reference: str) -> Function:
    if reference.endswith(".py"):
        reference = f"{reference}:{_only_function(settings.expanded(reference).absolute(), reference)}"
    target, colon, name = reference.rpartition(":")
    if not colon and (known := builtin.get(name)) is not None:
        return _built_in(known)
    if not colon or not target or not name:
        raise _not_there(reference)
    if target.endswith(".py") or "/" in target:
        file = settings.expanded(target).absolute()
        path: tuple[str, ...] = (str(file.parent),)
        with importable(path):
            module = _load_file(file)
        own = sources.imported(file, [Path.cwd()])
        where: dict[str, Any] = {"file": str(file)}
    else:
        path = (str(Path.cwd()),)
        with importable(path):
            module = _import(target)
        own = sources.of_module(target, [Path.cwd()])
        where = {"module": target}
    call = _attribute(module, name, reference)
    if builtin.traits_of(call).version:
        return _built_in(call)
    code = sources.code_hash(own.files, [] if own.files else [reference])
    return Function(reference, name, code, own.files, path=path, uses_torch=own.uses_torch, call=call, **where)


def _built_in(call: Callable[..., Any]) -> Function:
    """Describe a built-in function, identified by its version instead of its file."""
    name = call.__name__
    code = hashlib.sha256(f"rlds {name} {builtin.traits_of(call).version}".encode()).hexdigest()
    return Function(name, name, code, module=call.__module__, call=call)


def _not_there(reference: str) -> PreprocessError:
    meant = builtin.like(reference)
    return PreprocessError(
        f'"{reference}" names neither a function in a module or file, nor a built-in function.'
        f"{f' Did you mean {meant}?' if meant else ''}",
        hint=f"{_FORM} (rlds preprocess --list)",
    )


def _load_file(file: Path) -> ModuleType:
    """Import a file as a module with a unique name, once per content."""
    try:
        return modules.load(file, "function")
    except OSError as e:
        if file.is_file():
            raise _import_failed(str(file), e) from e
        there = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
        raise PreprocessError(
            f"There is no file {file}.{did_you_mean(file.name, there, 0.5)}", hint=f"--fn takes {_FORM}"
        ) from e
    except BaseException as e:
        raise _import_failed(str(file), e) from e


def _only_function(file: Path, reference: str) -> str:
    """Return the name of the public function that a file defines.

    Raises
    ------
    PreprocessError
        It defines none, or several.
    """
    with importable((str(file.parent),)):
        names = [n for n in _defined(_load_file(file)) if not n.startswith("_")]
    if len(names) == 1:
        return names[0]
    raise PreprocessError(
        f"{reference} defines {text.plural(len(names), 'function')}{': ' if names else ''}{', '.join(names)}.",
        hint=f"--fn {reference}:{names[0] if names else 'NAME'}",
    )


def _defined(module: ModuleType) -> list[str]:
    """Return the names of the functions that a module defines itself."""
    return sorted(n for n, v in vars(module).items() if isinstance(v, FunctionType) and v.__module__ == module.__name__)


def _import(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise PreprocessError(f'"{name}" cannot be the name of a module.', hint=_FORM)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is None or not (name == e.name or name.startswith(f"{e.name}.")):
            raise _import_failed(name, e) from e
        there = [p.stem for p in Path.cwd().glob("*.py")] + [p.parent.name for p in Path.cwd().glob("*/__init__.py")]
        searched = ", ".join(p or "." for p in sys.path)
        raise PreprocessError(
            f"There is no module {e.name}.{did_you_mean(name, there, 0.5)} Searched: {searched}",
            hint="run it in the directory of the module, or name the file: --fn path/to/file.py:function",
        ) from e
    except BaseException as e:
        raise _import_failed(name, e) from e


def _import_failed(what: str, e: BaseException) -> PreprocessError:
    if isinstance(e, KeyboardInterrupt):
        raise e
    at = modules.line_of_import(e)
    return PreprocessError(f"{what} cannot be imported: {type(e).__name__}: {e}{at}. Nothing was done.")


def _attribute(module: ModuleType, name: str, reference: str) -> Callable[..., Any]:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if callable(value):
        return value  # type: ignore[no-any-return]
    there = _defined(module)
    what = (
        f"{reference} is a {type(value).__name__}, not a function."
        if value is not None
        else (f"There is no function {name} in {reference.rpartition(':')[0]}.{did_you_mean(name, there, 0.5)}")
    )
    raise PreprocessError(f"{what} Functions there: {', '.join(there) or 'none'}.")


def _given(fn: Callable[..., Any]) -> Function:
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    module, name = kind.__module__ or "", kind.__qualname__
    reference = name.rpartition(".<locals>.")[2] if module == "__main__" or "<" in name else f"{module}:{name}"
    found: Any = None if module == "__main__" and not script() else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    importable = found is kind  # by its name, in another process
    own = sources.of_module(module, [Path.cwd()]) if importable else UserModules()
    code = _code_of(fn, kind, reference, own.files)
    if kind is fn and importable:
        return Function(reference, name, code, own.files, module=module, uses_torch=own.uses_torch, call=fn)
    pickled = _pickled(fn)
    uses_torch = sources.TORCH in (pickled or b"") or own.uses_torch
    name = name.rpartition(".")[2]
    return Function(reference, name, code, own.files, pickled=pickled, uses_torch=uses_torch, call=fn)


def _code_of(fn: Callable[..., Any], kind: Any, reference: str, files: Files) -> str:
    """Hash the source files, or else the code itself, and the attributes of an object or partial."""
    held: list[object] = [] if files else [kind if isinstance(kind, FunctionType) else reference]
    while isinstance(fn, functools.partial):
        held += [fn.args, sorted(fn.keywords.items())]
        fn = fn.func
    if fn is not kind:
        held.append(sorted(getattr(fn, "__dict__", {}).items()))
    if not files:
        held += [getattr(fn, name) for name in ("fit", "merge") if isinstance(getattr(fn, name, None), FunctionType)]
    return sources.code_hash(files, held)


def script() -> Path | None:
    """Return the file of the running program; None in a notebook, with ``-c`` and from standard input."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _pickled(fn: Callable[..., Any]) -> bytes | None:
    try:
        import cloudpickle as pickler
    except ImportError:
        pickler = pickle
    try:
        pickled: bytes = pickler.dumps(fn)
    except Exception:  # whatever an object's own __reduce__ raises
        return None
    # Pickle refers to __main__ by name, and other processes have another one unless it is a file that they run too.
    lost = pickler is pickle and b"__main__" in pickled and not script()
    return None if lost else pickled
