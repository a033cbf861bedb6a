"""The user's function: found by name, loaded again in worker processes, and identified by what it is made of."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from rlds_cli import settings
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import builtin, sources, traits
from rlds_cli.preprocess.sources import Files
from rlds_cli.text import did_you_mean

UNITS = ("episode", "batch", "step", "window")
_UNIT, _SPAN = "__rlds_unit__", "__rlds_span__"
_FORM = "MODULE:FUNCTION, as in my_prep:norm; FILE.py:FUNCTION, as in prep/my_prep.py:norm; or a built-in one's name"

F = TypeVar("F", bound=Callable[..., Any])


def unit(kind: str, *, history: int = 0, future: int = 0) -> Callable[[F], F]:
    """Say what a preprocess function is given at a time; a decorator.

    Parameters
    ----------
    kind : {"episode", "batch", "step", "window"}
        One whole episode (the default), many transitions, one transition, or many transitions with their neighbours.
        ``--unit`` and ``unit=`` override it.
    history, future : int
        Of a window: how many steps before and after each step it reaches. It has ``history + 1 + future`` of them.

    Raises
    ------
    PreprocessError
        For any other kind, or numbers that no window has.

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
    """Raise PreprocessError unless ``kind`` is a unit, and reaches as far as one can."""
    if kind not in UNITS:
        raise PreprocessError(f'There is no unit "{kind}".', hint=f"one of {', '.join(UNITS)}")
    for name, steps in (("history", history), ("future", future)):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise PreprocessError(f"{name}={steps!r} is not a number of steps.")
        if steps and kind != "window":
            raise PreprocessError(f"{name}={steps} is for unit window; the unit is {kind}.", hint="unit=window")


@dataclass(frozen=True)
class Function:
    """A function that other processes can load, unless it is in no module and cannot be pickled.

    ``reference`` is how people write it; ``code`` the hash of what it is made of, ``files`` among that. ``path`` are
    the directories that its modules are searched in.
    """

    reference: str
    name: str
    code: str
    files: Files = ()
    module: str | None = None
    file: str | None = None
    pickled: bytes | None = None
    path: tuple[str, ...] = ()
    call: Callable[..., Any] | None = field(default=None, compare=False)

    @property
    def portable(self) -> bool:
        """Whether a worker process can load it."""
        return bool(self.module or self.file or self.pickled)

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        if self.call is not None:
            return self.call
        if self.pickled is not None:
            return pickle.loads(self.pickled)  # type: ignore[no-any-return]  # made by this program, a moment ago
        module = _load_file(Path(self.file)) if self.file else importlib.import_module(self.module or "")
        return _attribute(module, self.name, self.reference)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "call": None}

    @property
    def unit(self) -> str | None:
        """What its decorator says."""
        return marked(self.call)[0]

    @property
    def span(self) -> tuple[int, int]:
        """Steps before and after, as its decorator says."""
        return marked(self.call)[1]


def first_pass(call: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """``fit`` and ``merge`` of a function that has a first pass, at itself or at the object that it is.

    Raises
    ------
    PreprocessError
        It has one of them only.
    """
    while isinstance(call, functools.partial):
        call = call.func
    fit, merge = (getattr(call, name, None) for name in ("fit", "merge"))
    if fit is None and merge is None:
        return None
    if not callable(fit) or not callable(merge):
        name = getattr(call, "__name__", type(call).__name__)
        there, missing = ("fit", "merge") if callable(fit) else ("merge", "fit")
        raise PreprocessError(
            f"{name} has {there} and no {missing}.",
            hint="a first pass is fit(batch, state), which returns the state, and merge(a, b), which makes one of two",
        )
    return fit, merge


def marked(call: Any) -> tuple[str | None, tuple[int, int]]:
    """The unit that a decorator gave a function, and how far its windows reach."""
    return _marked(call, _UNIT), _marked(call, _SPAN) or (0, 0)


def _marked(call: Any, mark: str) -> Any:
    """What a decorator left at a function, a partial of one, an object that can be called, or its method."""
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(call, mark, None) or getattr(type(call).__call__, mark, None)


@contextmanager
def importable(path: tuple[str, ...]) -> Iterator[None]:
    """Search ``path`` for modules first, as ``python -m`` does with the current directory; workers inherit it."""
    added = [p for p in path if p not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for p in added:
            if p in sys.path:
                sys.path.remove(p)


def searched(fns: Iterable[object]) -> tuple[str, ...]:
    """Where modules of functions are searched first: the current directory, unless all are built-in ones' names."""
    return () if all(isinstance(fn, str) and ":" not in fn for fn in fns) else (str(Path.cwd()),)


def find(fn: str | Callable[..., Any] | Function) -> Function:
    """The function that ``fn`` names, or is.

    Raises
    ------
    PreprocessError
        There is none; the message says where was searched, and what there is.
    """
    if isinstance(fn, Function):
        return fn
    if isinstance(fn, str):
        return _referenced(fn)
    if isinstance(fn, list | tuple):
        raise PreprocessError("Several functions are a pipeline, which is run as a whole.", hint="preprocess.run")
    if not callable(fn):
        raise PreprocessError(f"{fn!r} is not a function.", hint=f"a function, or {_FORM}")
    if isinstance(fn, FunctionType) and traits.of(fn).version:
        return _built_in(fn)
    return _given(fn)


def _referenced(reference: str) -> Function:
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
        files = sources.made_of(file, [Path.cwd()])
        where: dict[str, Any] = {"file": str(file)}
    else:
        path = (str(Path.cwd()),)
        with importable(path):
            module = _import(target)
        files = sources.module_files(target, [Path.cwd()])
        where = {"module": target}
    call = _attribute(module, name, reference)
    if traits.of(call).version:
        return _built_in(call)
    return Function(reference, name, _hash(files, [] if files else [reference]), files, path=path, call=call, **where)


def _built_in(call: Callable[..., Any]) -> Function:
    """A function of ours: known by its version, not by the file that it stands in."""
    name = call.__name__
    code = hashlib.sha256(f"rlds {name} {traits.of(call).version}".encode()).hexdigest()
    return Function(name, name, code, module=call.__module__, call=call)


def _not_there(reference: str) -> PreprocessError:
    meant = builtin.like(reference)
    return PreprocessError(
        f'"{reference}" does not say where the function is, and no built-in one is called so.'
        f"{f' Did you mean {meant}?' if meant else ''}",
        hint=f"{_FORM} (rlds preprocess --list)",
    )


def _hash(files: Files, held: list[object]) -> str:
    return hashlib.sha256((sources.files_hash(files) + sources.code_hash(held)).encode()).hexdigest()


def _load_file(file: Path) -> ModuleType:
    """Run a file as a module of a name of its own, once per content."""
    try:
        data = file.read_bytes()
    except OSError as e:
        there = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
        raise PreprocessError(
            f"There is no file {file}.{did_you_mean(file.name, there, 0.5)}", hint=f"--fn takes {_FORM}"
        ) from e
    name = f"rlds_function_{file.stem}_{hashlib.sha256(str(file).encode() + data).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        del sys.modules[name]
        raise _import_failed(str(file), e) from e
    return module


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
            hint="run it where the module is, or give the file: --fn path/to/file.py:function",
        ) from e
    except BaseException as e:
        raise _import_failed(name, e) from e


def _import_failed(what: str, e: BaseException) -> PreprocessError:
    if isinstance(e, KeyboardInterrupt):
        raise e
    return PreprocessError(f"{what} cannot be imported: {type(e).__name__}: {e}{_line(e)}. Nothing was done.")


def _line(e: BaseException) -> str:
    if isinstance(e, SyntaxError):
        return ""  # says so itself
    frames = [
        f for f in traceback.extract_tb(e.__traceback__) if "importlib" not in f.filename and f.filename != __file__
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _attribute(module: ModuleType, name: str, reference: str) -> Callable[..., Any]:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if callable(value):
        return value  # type: ignore[no-any-return]
    there = sorted(
        n for n, v in vars(module).items() if isinstance(v, FunctionType) and v.__module__ == module.__name__
    )
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
    files = sources.module_files(module, [Path.cwd()]) if _is_found(module, name, kind) else ()
    code = _code_of(fn, kind, reference, files)
    if kind is fn and _is_found(module, name, fn):
        return Function(reference, name, code, files, module=module, call=fn)
    return Function(reference, name.rpartition(".")[2], code, files, pickled=_pickled(fn), call=fn)


def _code_of(fn: Callable[..., Any], kind: Any, reference: str, files: Files) -> str:
    """The hash of files where the code is in files; of the code itself where not; and of what an object holds."""
    held: list[object] = [] if files else [kind if isinstance(kind, FunctionType) else reference]
    while isinstance(fn, functools.partial):
        held += [fn.args, sorted(fn.keywords.items())]
        fn = fn.func
    if fn is not kind:
        held.append(sorted(getattr(fn, "__dict__", {}).items()))
    if not files:
        held += [getattr(fn, name) for name in ("fit", "merge") if isinstance(getattr(fn, name, None), FunctionType)]
    return _hash(files, held)


def _is_found(module: str, name: str, value: object) -> bool:
    """Whether another process finds ``value`` by its module and name."""
    at: Any = sys.modules.get(module)
    if at is None or (module == "__main__" and not script()):
        return False
    for part in name.split("."):
        at = getattr(at, part, None)
    return at is value


def script() -> Path | None:
    """The file that this program is run from; None for a notebook, ``-c`` and standard input."""
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
    # Other processes have another __main__, unless it is a file that they run too.
    lost = pickler is pickle and b"__main__" in pickled and not script()
    return None if lost else pickled
