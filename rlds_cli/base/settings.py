"""Environment variables and directories, read in one place.

========================  ==========================================================================
RLDS_HOME                 where datasets are written; else $XDG_CACHE_HOME/rlds, else ~/.cache/rlds
RLDS_PATH                 more homes to search, read-only, separated by ``:``
RLDS_OFFLINE              1: never touch the network
RLDS_MIRROR               roots of mirrors, looked at first: directories or URLs, separated by spaces or commas
RLDS_READ_MEMORY          memory for reading an archive, as in 8GiB; else 4 GiB, or half of the machine's
RLDS_REGISTRY             registries of one's own: files, directories or http(s):// addresses, separated by commas
HF_ENDPOINT               the hub; https://huggingface.co unless given
HF_TOKEN                  the hub token; else the token file of the hub's own client
HF_HOME                   where that client keeps its token and cache
RLDS_GCS_ENDPOINT         another host for gs:// sources; STORAGE_EMULATOR_HOST is honoured, too
GOOGLE_APPLICATION_CREDENTIALS  key file of a service account, for gs:// sources that are not public
AWS_ACCESS_KEY_ID ...     for s3:// sources that are not public; else AWS_PROFILE of ~/.aws/credentials
AWS_ENDPOINT_URL          another host for s3:// sources; AWS_ENDPOINT_URL_S3 goes before it
AWS_REGION                the region of s3:// addresses, else AWS_DEFAULT_REGION, else the bucket is asked
D4RL_DATASET_DIR          where D4RL keeps its downloads; ~/.d4rl/datasets unless given
MINARI_DATASETS_PATH      where Minari keeps its datasets; ~/.minari/datasets unless given
========================  ==========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlds_cli.base.text import bytes_of
from rlds_cli.errors import InvalidArgument

_AWS = {"access_key_id": "ACCESS_KEY_ID", "secret_access_key": "SECRET_ACCESS_KEY", "token": "SESSION_TOKEN"}

_READ_MEMORY = 4 << 30  # more than any known archive takes: readers keep chunks of some megabytes, and ends of episodes

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from environment variables and the directories of other tools."""

    home: Path
    search: tuple[Path, ...]
    offline: bool
    hub: str
    hub_token: str | None = field(repr=False)
    hub_cache: Path
    elsewhere: tuple[Path, ...] = ()  # where other tools keep the same archives
    gcs: str = "https://storage.googleapis.com"
    s3: str | None = None  # None: amazonaws.com
    mirrors: tuple[str, ...] = ()
    aws: Mapping[str, str] = field(default_factory=dict, repr=False)  # credentials, as obstore calls them
    google: Path | None = None  # the key file of a service account
    region: str | None = None  # of S3
    registries: tuple[str, ...] = ()  # files, directories or addresses

    @property
    def homes(self) -> tuple[Path, ...]:
        """The user's own home first, then the shared ones."""
        return (self.home, *(p for p in self.search if p != self.home))


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_memory(environ: Mapping[str, str] | None = None) -> int:
    """Return the bytes of memory that a process may take to read an archive; 0 for any number.

    Raises
    ------
    InvalidArgument
        RLDS_READ_MEMORY is not a size.
    """
    said = (os.environ if environ is None else environ).get("RLDS_READ_MEMORY", "").strip()
    if not said:
        return min(_READ_MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    size = bytes_of(said)
    if size is None:
        raise InvalidArgument(f"RLDS_READ_MEMORY={said!r} is not a size.", hint="RLDS_READ_MEMORY=8GiB")
    return size


def read(home: StrPath | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; ``home`` overrides ``RLDS_HOME``."""
    env = os.environ if environ is None else environ
    user_cache = _user_cache(env)
    root = expanded(home or env.get("RLDS_HOME") or user_home(env)).absolute()
    search = tuple(expanded(p).absolute() for p in env.get("RLDS_PATH", "").split(os.pathsep) if p)
    hub_home = expanded(env.get("HF_HOME") or user_cache / "huggingface")
    token = env.get("HF_TOKEN")
    if not token:
        with suppress(OSError):
            token = expanded(env.get("HF_TOKEN_PATH") or hub_home / "token").read_text().strip()
    return Settings(
        home=root,
        search=search,
        offline=env.get("RLDS_OFFLINE", "").lower() not in ("", "0", "false", "no"),
        hub=(env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
        hub_token=token or None,
        hub_cache=expanded(env.get("HF_HUB_CACHE") or hub_home / "hub"),
        elsewhere=(
            expanded(env.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets"),
            expanded(env.get("MINARI_DATASETS_PATH") or "~/.minari/datasets"),
            expanded("~/.ogbench/data"),
        ),
        gcs=_endpoint(env, "RLDS_GCS_ENDPOINT", "STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com",
        aws=_aws(env),
        google=expanded(key) if (key := env.get("GOOGLE_APPLICATION_CREDENTIALS")) else None,
        mirrors=tuple(env.get("RLDS_MIRROR", "").replace(",", " ").split()),
        s3=_endpoint(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        registries=tuple(s.strip() for s in env.get("RLDS_REGISTRY", "").split(",") if s.strip()),
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None,
    )


def user_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return the home of a user who names none: ``~/.cache/rlds``."""
    return (_user_cache(os.environ if environ is None else environ) / "rlds").absolute()


def _user_cache(env: Mapping[str, str]) -> Path:
    return expanded(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def expanded(path: StrPath) -> Path:
    """Expand ``~`` at the beginning of a path; the path of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (which raises an error then)


def _endpoint(env: Mapping[str, str], *variables: str) -> str | None:
    """Return the first variable that is set, as a URL without a final slash. Emulators often come without a scheme."""
    found = next((env[name] for name in variables if env.get(name)), None)
    return found and (found if "://" in found else f"http://{found}").rstrip("/")


def _aws(env: Mapping[str, str]) -> dict[str, str]:
    """Read access key, secret and session token from the environment, or a profile of the shared credentials file."""
    said = {k: env[f"AWS_{name}"] for k, name in _AWS.items() if env.get(f"AWS_{name}")}
    if "access_key_id" in said:
        return said
    file = expanded(env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    try:
        text = file.read_text()
    except (OSError, ValueError):
        return {}
    from configparser import ConfigParser, Error  # 2 ms at the start of every command

    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
        profile = parser[env.get("AWS_PROFILE") or "default"]
    except (Error, KeyError):
        return {}
    return {k: profile[f"aws_{name.lower()}"] for k, name in _AWS.items() if f"aws_{name.lower()}" in profile}
