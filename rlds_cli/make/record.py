"""Gymnasium wrappers that record while one plays. Importing this module imports Gymnasium."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rlds_cli.base.media import image_header
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import ArchiveError, InvalidArgument, InvalidEpisode, MissingPackage, RldsError
from rlds_cli.make.convert.writer import Writer, fields_like
from rlds_cli.store.growing.retention import Keep
from rlds_cli.ted import FLAGS, REWARD, Field, Placement, Space

try:
    import gymnasium
    from gymnasium.vector import VectorEnv, VectorWrapper
except ImportError as e:
    raise MissingPackage("Record wraps Gymnasium's environments.", hint="pip install 'rlds-cli[spaces]'") from e


class Record(gymnasium.Wrapper):  # type: ignore[misc]  # untyped
    """Records the episodes of an environment in a growing dataset; of a vector of environments, too.

    Observations and actions are recorded in the dtypes of their spaces (images as uint8), or in those of the dataset's
    fields if it exists or ``like`` is given: a dataset of float32 then takes observations of float64 rounded.
    An episode that is open when the environment is reset or closed is cut: it ends without being terminated or
    truncated, and its last observation is recorded. ``close`` closes the writer, then the environment.

    Parameters
    ----------
    env : gymnasium.Env or gymnasium.vector.VectorEnv
        All modes of resetting a vector are known: in the next step, in the same step, by ``reset_mask``.
    ref : str
        Id of the dataset, such as ``local/run7``; one that exists is continued.
    infos : bool or collection of str
        Record numbers, arrays and texts of the infos that steps return, as fields ``info/...``: all of the first step
        (True), or those of these names. Each step must have them.
    like, keep, shared, durable, home
        As of `rlds_cli.writer`.

    Attributes
    ----------
    writer : Writer
        ``writer.commit()`` shows open episodes, ``writer.dataset()`` opens what was recorded.

    Raises
    ------
    MissingPackage
        Gymnasium is not installed.

    Examples
    --------
    >>> import gymnasium, tempfile, rlds_cli
    >>> home = tempfile.mkdtemp()
    >>> with rlds_cli.Record(gymnasium.make("CartPole-v1"), "local/run", home=home) as env:
    ...     observation, info = env.reset(seed=0)
    ...     for _ in range(5):
    ...         observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    >>> rlds_cli.open_dataset("local/run", home=home).num_steps
    5
    """

    def __new__(cls, env: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a wrapper of the environment's kind."""
        if cls is Record and isinstance(env, VectorEnv):
            return RecordVector(env, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        ref: str,
        *,
        infos: bool | Collection[str] = False,
        like: Dataset | None = None,
        keep: Keep | None = None,
        shared: bool = False,
        durable: bool = True,
        home: StrPath | None = None,
    ) -> None:
        super().__init__(env)
        self._form = _Form(env.observation_space, env.action_space, infos)
        self.writer = self._form.writer(env, ref, like, keep, 0, shared=shared, durable=durable, home=home)
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; seed and options go into the episode table."""
        told = _told(options)  # an environment may change its options
        found: tuple[Any, dict[str, Any]] = self.env.reset(seed=seed, options=options)
        self.writer.begin(seed=seed, options=told)
        self._observation = self._form.observation(found[0])
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step, and record it."""
        if self._observation is None:
            raise RldsError("The episode is over, or has not begun.", hint="env.reset()")
        done = self._form.action(action)
        found: tuple[Any, Any, bool, bool, dict[str, Any]] = self.env.step(action)
        observation, reward, terminated, truncated, info = found
        after = self._form.observation(observation)
        self.writer.add(
            self._observation, done, float(reward), terminated, truncated,
            next_observation=after, info=self._form.info(info),
        )  # fmt: skip
        self._observation = None if terminated or truncated else after
        return found

    def close(self) -> None:
        """Commit everything, the open episode as a cut one, and close the environment."""
        try:
            self.writer.close()
        finally:
            super().close()

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


_own = inspect.signature(Record.__init__)  # that of __new__ says nothing
Record.__signature__ = _own.replace(parameters=list(_own.parameters.values())[1:])


class RecordVector(VectorWrapper):  # type: ignore[misc]  # untyped
    """As `Record`, of a vector of environments: each has episodes of its own."""

    def __init__(
        self,
        env: VectorEnv,
        ref: str,
        *,
        infos: bool | Collection[str] = False,
        like: Dataset | None = None,
        keep: Keep | None = None,
        shared: bool = False,
        durable: bool = True,
        home: StrPath | None = None,
    ) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        self._mode = getattr(mode, "value", mode) or "NextStep"
        self._form = _Form(env.single_observation_space, env.single_action_space, infos)
        self.writer = self._form.writer(env, ref, like, keep, env.num_envs, shared=shared, durable=durable, home=home)
        self._observation: Any = None
        self._over = np.zeros(env.num_envs, bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; seeds and options go into the table."""
        n = self.num_envs
        mask = np.array((options or {}).get("reset_mask", np.ones(n, bool)), bool)
        told = _told({k: v for k, v in (options or {}).items() if k != "reset_mask"})
        found: tuple[Any, dict[str, Any]] = self.env.reset(seed=seed, options=options)
        seeds = [None if seed is None else seed + k for k in range(n)] if not isinstance(seed, list) else seed
        for k in np.flatnonzero(mask).tolist():
            self.writer.begin(k, seed=seeds[k], options=told)
        self._observation = self._form.observation(found[0], n)
        self._over[mask] = False
        return found

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step in each environment, and record those that are steps: a reset is none."""
        if self._observation is None:
            raise RldsError("No episode has begun.", hint="env.reset()")
        done = self._form.action(actions, self.num_envs)
        found: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        observations, rewards, terminated, truncated, infos = found
        over = np.asarray(terminated, bool) | np.asarray(truncated, bool)
        now = self._form.observation(observations, self.num_envs)
        after, ended = now, {}
        if self._mode == "SameStep" and over.any():
            after, ended = _copied(now), infos.get("final_info", {})
            for k in np.flatnonzero(over).tolist():
                _put(after, k, self._form.observation(infos["final_obs"][k]))
        stepped = ~self._over if self._mode == "NextStep" else np.ones(self.num_envs, bool)
        if stepped.any():
            told = self._form.infos(infos, ended, over, stepped)
            self.writer.add(
                self._observation, done, np.asarray(rewards, np.float64), terminated, truncated,
                next_observation=after, info=told, mask=stepped,
            )  # fmt: skip
        self._observation = now
        if self._mode == "NextStep":
            self._over = over
        return found

    def close(self, **kwargs: Any) -> None:
        """Commit everything, open episodes as cut ones, and close the environments."""
        try:
            self.writer.close()
        finally:
            super().close(**kwargs)

    def __enter__(self) -> RecordVector:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class _Form:
    """The fields of the dataset, and values in their dtypes."""

    def __init__(self, observation: Any, action: Any, infos: bool | Collection[str]) -> None:
        self._spaces = {"observation": observation, "action": action}
        self._all_infos = infos is True
        self._infos = None if infos is True else tuple(infos or ())
        self._dtypes: dict[str, str] = {}

    def writer(self, env: Any, ref: str, like: Dataset | None, keep: Keep | None, envs: int, **given: Any) -> Writer:
        """Open the writer, and learn the dtypes of the fields."""
        about: dict[str, Any] = {"spaces": {}, "env": _described(env)}
        fields: list[Field] = []
        for name, space in self._spaces.items():
            try:
                about["spaces"][name] = Space.of(space).form
            except ArchiveError as e:
                raise InvalidArgument(f"{name}_space: {e.message}", hint=e.hint) from e
            fields += _fields(space, name, "both" if name == "observation" else "root")
        fields += [Field(REWARD, "float64", (), "next"), *(Field(name, "bool", (), "next") for name in FLAGS)]
        made = () if self._infos is None or self._infos else tuple(fields)
        if like is not None:  # steps are recorded one by one: frames of videos as arrays
            made = fields_like(like, image_header.CODECS)
        opened = Writer(ref, made, about, keep, envs, **given)
        there = opened.fields
        self._dtypes = {f.name: f.dtype for f in fields} | {name: f.dtype for name, f in there.items()}
        return opened

    def observation(self, value: Any, rows: int | None = None) -> Any:
        """Return a copy of an observation in the dtypes of its fields, or of so many rows of them."""
        return self._cast(value, self._spaces["observation"], "observation", rows)

    def action(self, value: Any, rows: int | None = None) -> Any:
        """Return a copy of an action in the dtypes of its fields, or of so many rows of them."""
        return self._cast(value, self._spaces["action"], "action", rows)

    def _cast(self, value: Any, space: Any, name: str, rows: int | None) -> Any:
        kinds = gymnasium.spaces
        if isinstance(space, kinds.Dict):
            return {key: self._cast(value[key], part, f"{name}/{key}", rows) for key, part in space.spaces.items()}
        if isinstance(space, kinds.Tuple):
            return {str(k): self._cast(value[k], s, f"{name}/{k}", rows) for k, s in enumerate(space.spaces)}
        if isinstance(space, kinds.Text):
            return str(value) if rows is None else [str(v) for v in value]
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        given = np.asarray(value)
        with np.errstate(invalid="ignore", over="ignore"):
            cast = np.array(given, self._dtypes[name])
        if cast.dtype.kind not in "fc" and not np.array_equal(cast, given):
            raise InvalidEpisode(f"{name} is {given.dtype}, with values that {cast.dtype} does not hold.")
        return cast

    def info(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the infos of a step that are recorded."""
        if self._infos is None:
            self._infos = tuple(name for name, value in info.items() if _is_plain(value))
        return {name: info[name] for name in self._infos if name in info}

    def infos(self, now: Mapping[str, Any], ended: Mapping[str, Any], over: Any, stepped: Any) -> dict[str, Any]:
        """Return the infos of a step of several environments; of those that are ``over``, from ``ended``."""
        if self._infos is None:
            there = dict(ended) | dict(now)
            self._infos = tuple(n for n, v in there.items() if not n.startswith("_") and _is_plain(v))
        found: dict[str, Any] = {}
        for name in self._infos:
            rows = np.array(now[name] if name in now else ended.get(name, [None] * len(over)))
            has = np.array(now.get(f"_{name}", np.zeros(len(over), bool)))
            if name in ended:
                rows[over], has[over] = np.asarray(ended[name])[over], np.asarray(ended[f"_{name}"])[over]
            lacking = np.flatnonzero(stepped & ~has)
            if len(lacking):
                raise InvalidEpisode(f"environment {lacking[0]}: the infos of this step lack {name}.")
            found[name] = rows.tolist() if rows.dtype == object else rows
        return found


def _fields(space: Any, name: str, placement: Placement) -> list[Field]:
    """Return the fields of a space."""
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Dict):
        return [f for key, part in space.spaces.items() for f in _fields(part, f"{name}/{key}", placement)]
    if isinstance(space, kinds.Tuple):
        return [f for k, part in enumerate(space.spaces) for f in _fields(part, f"{name}/{k}", placement)]
    if isinstance(space, kinds.Text):
        return [Field(name, "str", (), placement, "text")]
    return [Field(name, np.dtype(space.dtype).name, tuple(space.shape or ()), placement)]


def _described(env: Any) -> dict[str, Any]:
    """Return the environment for the manifest: its id, and its settings if there are any."""
    spec = getattr(env, "spec", None)
    if spec is None:
        return {}
    settings = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError):
        return {"id": spec.id}
    return {"id": spec.id, **({"spec": {"id": spec.id, "kwargs": settings}} if settings else {})}


def _told(options: Mapping[str, Any] | None) -> str | None:
    """Return the options of a reset as JSON."""
    return json.dumps(options, default=lambda v: v.tolist() if hasattr(v, "tolist") else repr(v)) if options else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return all(isinstance(v, str) for v in value if v is not None) and any(v is not None for v in value)
    return isinstance(value, str | bool | int | float | np.number | np.bool_) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biufc"
    )


def _copied(value: Any) -> Any:
    return {key: _copied(v) for key, v in value.items()} if isinstance(value, dict) else value.copy()


def _put(rows: Any, k: int, value: Any) -> None:
    """Put the observation of one environment into those of all."""
    if isinstance(rows, dict):
        for key, part in rows.items():
            _put(part, k, value[key])
    else:
        rows[k] = value
