"""Make the environment of a dataset with Gymnasium.

The description in an archive is data: id, settings and wrappers are looked up, and an entry point is never imported
from it. ``registry/environments.json`` lists replacements for environments that no longer exist.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlds_cli.base.files.packaged import registry_directory
from rlds_cli.errors import MissingPackage, NoEnvironment, RldsError
from rlds_cli.store import Manifest
from rlds_cli.ted import Field, Space

if TYPE_CHECKING:
    import gymnasium

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Arguments of ``gymnasium.make`` for an environment.

    Attributes
    ----------
    id : str
        Id in Gymnasium's registry.
    kwargs : mapping
        Settings that the archive records.
    max_episode_steps : int or None
        Time limit in steps; None leaves Gymnasium's own.
    wrappers : tuple of (str, mapping)
        ``package:Class`` and its arguments, the innermost first.
    note : str or None
        Difference to the data's own environment, if this one replaces it.
    """

    id: str
    kwargs: Json = field(default_factory=dict)
    max_episode_steps: int | None = None
    wrappers: tuple[tuple[str, Json], ...] = ()
    note: str | None = None


def make_env(manifest: Manifest, fields: Sequence[Field], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment for evaluating policies trained on a dataset.

    Parameters
    ----------
    manifest : Manifest
        Of the dataset.
    fields : sequence of Field
        Its fields: observations and actions of the environment must have their shapes.
    **kwargs
        For ``gymnasium.make``: ``render_mode``, ``max_episode_steps``, settings of the environment.

    Raises
    ------
    MissingPackage
        Gymnasium or the package of the environment is not installed.
    NoEnvironment
        The environment is not known, no longer exists, or does not fit the data.

    Warns
    -----
    UserWarning
        The environment replaces one that Gymnasium does not have; the text says how they differ. Or a package that the
        archive requires for it is not installed, or in another version.
    """
    gym = _gymnasium()
    recipe = plan(manifest, gym.registry)
    unmet = [f"{manifest.id}: {text}." for text in _unmet(manifest.facts.get("requirements"))]
    for text in [*([f"{manifest.id}: {recipe.id} is made. {recipe.note}."] if recipe.note else []), *unmet]:
        warnings.warn(text, UserWarning, stacklevel=3)
    limit = kwargs.pop("max_episode_steps", recipe.max_episode_steps)
    try:
        env = _made(gym, recipe, limit, kwargs)
    except (gym.error.DependencyNotInstalled, ImportError) as e:
        raise MissingPackage(f"{recipe.id}, the environment of {manifest.id}, needs a package: {e}") from e
    except gym.error.Error as e:
        raise NoEnvironment(f"Gymnasium cannot make {recipe.id}, the environment of {manifest.id}: {e}") from e
    except Exception as e:  # environments and wrappers raise errors of all kinds over settings
        if kwargs:  # the caller's own
            raise
        raise NoEnvironment(
            f"{recipe.id} cannot be made with the settings that {manifest.id} records: {type(e).__name__}: {e}",
            hint="gymnasium.make(...) creates an environment that you know; ds.manifest.env holds the description",
        ) from e
    _check(manifest, fields, env, recipe.id)
    return env


def _unmet(requirements: Any) -> Iterator[str]:
    """Say which requirements of an archive (``mujoco>=3.1``, as pip has them) the installed packages do not meet."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    from packaging.requirements import InvalidRequirement, Requirement

    for text in (r for r in ([requirements] if isinstance(requirements, str) else requirements or ())):
        try:
            wanted = Requirement(text)
            there = version(wanted.name)
        except (InvalidRequirement, TypeError):
            yield f"{text!r} of its requirements is not one that pip knows"
        except PackageNotFoundError:
            yield f"its environment requires {text}, which is not installed"
        else:
            if not wanted.specifier.contains(there, prereleases=True):
                yield f"its environment requires {text}, and {wanted.name} {there} is installed"


def _made(gym: Any, recipe: Recipe, limit: int | None, kwargs: Json) -> gymnasium.Env[Any, Any]:
    env = gym.make(recipe.id, max_episode_steps=limit, **{**recipe.kwargs, **kwargs})
    for name, arguments in recipe.wrappers:
        package, _, kind = name.partition(":")
        env = getattr(import_module(f"{package}.wrappers"), kind)(env, **arguments)
    return env


def known_spaces(env_id: str, fields: Sequence[Field]) -> tuple[dict[str, Any], str | None]:
    """Return the spaces of a Gymnasium environment in Minari's JSON form, and the reason if some are missing.

    Nothing is imported for an id with a module (``package:Name-v0``). Without Gymnasium the result is empty.
    """
    if find_spec("gymnasium") is None:
        return {}, None
    gym = _gymnasium()
    if env_id not in gym.registry:
        return {}, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old versions and renderers: only the spaces are needed
            env = gym.make(env_id)
            found = {name: getattr(env, f"{name}_space") for name in ("observation", "action")}
            env.close()
    except Exception as e:  # foreign environments raise errors of all kinds
        return {}, f"Gymnasium cannot make {env_id}, so its spaces are not known: {type(e).__name__}: {e}"
    known, why = {}, None
    for name, space in found.items():
        try:
            recorded = Space.of(space)
            wrong = recorded.misfit(fields, name)
        except RldsError as e:
            wrong = e.message
        if wrong is None:
            known[name] = recorded.form
        else:
            why = f"the {name} space of {env_id} is not taken: {wrong}"
    return known, why


def plan(manifest: Manifest, registered: Container[str]) -> Recipe:
    """Decide how to make the environment of a dataset.

    The archive's evaluation environment is preferred to the one that collected the data, and a full description to an
    id alone. An id that Gymnasium knows is used unchanged.

    Parameters
    ----------
    manifest : Manifest
    registered : container of str
        The ids that Gymnasium knows: ``gymnasium.registry``.

    Raises
    ------
    MissingPackage, NoEnvironment
    """
    _check_unchanged(manifest)
    described = manifest.env
    spec = described.get("eval_spec") or described.get("spec") or {}
    name = spec.get("id") or described.get("eval_id") or described.get("id")
    if not name:
        raise NoEnvironment(
            f"The environment of {manifest.id} is not known.",
            hint="gymnasium.make(...) creates an environment that you know; create(..., env_id=...) records it",
        )
    id = str(name).rpartition(":")[2]  # "module:Name-v0" would import the module
    known = _known(id, registered)
    old = None if known else next((o for o in _facts()["legacy"] if _any(id, o["env_ids"])), None)
    if old is None and not known:
        raise _unknown(manifest.id, id, spec)
    if old is not None and "make" not in old:
        raise NoEnvironment(
            f"{manifest.id} is of {id}, which has no replacement: {old['why']}.", hint=old.get("instead")
        )
    return Recipe(
        id=id if old is None else old["make"],
        kwargs={k: v for k, v in (spec.get("kwargs") or {}).items() if k != "render_mode"},
        max_episode_steps=spec.get("max_episode_steps") or described.get("max_episode_steps"),
        wrappers=tuple(_wrapper(manifest.id, w) for w in spec.get("additional_wrappers") or ()),
        note=None if old is None else old["why"],
    )


@cache
def _facts() -> Any:
    return json.loads((registry_directory() / "environments.json").read_text(encoding="utf-8"))


def _any(id: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(id, p) for p in patterns)


def _known(id: str, registered: Container[str]) -> bool:
    """Return whether Gymnasium knows ``id``, after importing the known package that registers it, if any."""
    if id in registered:
        return True
    package = next((p for p in _facts()["packages"] if _any(id, p["env_ids"])), None)
    if package is None:
        return False
    try:
        import_module(package["module"])
    except ImportError as e:
        raise MissingPackage(
            f"{id} is registered by the package {package['module']}, which cannot be imported: {e}.",
            hint=f"pip install {package['install']}",
        ) from e
    return id in registered


def _unknown(dataset: str, id: str, spec: Json) -> NoEnvironment:
    module = str(spec.get("entry_point") or "").partition(".")[0].partition(":")[0]
    whose = f"; its archive says that it is of the package {module}" if module and module != "gymnasium" else ""
    return NoEnvironment(
        f"{dataset} is of {id}, which Gymnasium does not know{whose}.",
        hint="import the package that registers it, then ds.make_env()",
    )


def _wrapper(dataset: str, described: Json) -> tuple[str, Json]:
    """Return a wrapper of a known package; others are refused, since an archive must not run code."""
    module, _, kind = str(described.get("entry_point") or "").partition(":")
    package = module.partition(".")[0]
    if kind not in _facts()["wrappers"].get(package, ()):
        raise NoEnvironment(
            f"The environment of {dataset} is wrapped in {module}:{kind}, which is not one of the known wrappers.",
            hint="gymnasium.make(...) and wrap it yourself; ds.manifest.env holds the description",
        )
    return f"{package}:{kind}", described.get("kwargs") or {}


def _check_unchanged(manifest: Manifest) -> None:
    """Refuse data whose observations or actions a function has changed: the environment still has the old ones."""
    for step in manifest.provenance:
        changed = [n for n in step["changed"] if n.split("/")[0] in ("observation", "action")]
        if changed:
            raise NoEnvironment(
                f"{manifest.id}: {step['function']} changed {', '.join(changed)}; the environment gives and takes"
                f" those of {step['from']}.",
                hint=f'rlds_cli.open_dataset("{step["from"]}").make_env(), wrapped to do what the function did',
            )


def _check(manifest: Manifest, fields: Sequence[Field], env: gymnasium.Env[Any, Any], id: str) -> None:
    """Close and refuse an environment whose observations or actions have other shapes than the data's."""
    for root, space in (("observation", env.observation_space), ("action", env.action_space)):
        for f in fields:
            if f.name.split("/")[0] != root or f.kind == "text":
                continue
            found = _shape(space, f.name.split("/")[1:])
            if found != f.shape:
                env.close()
                there = "nothing of that name" if found is None else f"shape {list(found)}"
                raise NoEnvironment(
                    f"{f.name} of {manifest.id} has shape {list(f.shape)}; {id} has {there}.",
                    hint="pass settings of the environment: ds.make_env(name=value)",
                )


def _shape(space: Any, path: Sequence[str]) -> tuple[int, ...] | None:
    """Return the shape of the part of a Gymnasium space at ``path``; None without such a part."""
    for key in path:
        parts = getattr(space, "spaces", None)
        if isinstance(parts, Mapping):
            space = parts.get(key)
        else:
            space = dict(_numbered(parts)).get(key)
    shape: tuple[int, ...] | None = getattr(space, "shape", None)
    return shape


def _numbered(parts: Any) -> Iterator[tuple[str, Any]]:
    yield from ((str(k), part) for k, part in enumerate(parts or ()))


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as e:
        raise MissingPackage(
            "Environments are made with Gymnasium, which is not installed.", hint="pip install 'rlds-cli[spaces]'"
        ) from e
    return gymnasium
