"""Environment variables and directories, read in one place.

========================  ==========================================================================
RLDS_HOME                 where datasets are written; else $XDG_CACHE_HOME/rlds, else ~/.cache/rlds
RLDS_PATH                 more homes to search, read-only, separated by ``:``
RLDS_OFFLINE              1: never touch the network
RLDS_MIRROR               roots of mirrors, looked at first: directories or URLs, separated by spaces or commas
RLDS_LIMIT_RATE           bytes a second that downloads may take, as in 10M
HF_ENDPOINT               the hub; https://huggingface.co unless given
HF_TOKEN                  the hub token; else the token file of the hub's own client
HF_HOME                   where that client keeps its token and cache
RLDS_GCS_ENDPOINT         another host for gs:// sources; STORAGE_EMULATOR_HOST is honoured, too
AWS_ENDPOINT_URL          another host for s3:// sources; AWS_ENDPOINT_URL_S3 goes before it
D4RL_DATASET_DIR          where D4RL keeps its downloads; ~/.d4rl/datasets unless given
MINARI_DATASETS_PATH      where Minari keeps its datasets; ~/.minari/datasets unless given
========================  ==========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlds_cli import sizes

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says."""

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
    limit_rate: int | None = None  # bytes a second over all connections of a download

    @property
    def homes(self) -> tuple[Path, ...]:
        """The user's own home first, then the shared ones."""
        return (self.home, *(p for p in self.search if p != self.home))


def read(cache_dir: StrPath | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; ``cache_dir`` takes the place of ``RLDS_HOME``."""
    env = os.environ if environ is None else environ
    user_cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser()
    home = Path(cache_dir or env.get("RLDS_HOME") or user_cache / "rlds").expanduser().absolute()
    search = tuple(Path(p).expanduser().absolute() for p in env.get("RLDS_PATH", "").split(os.pathsep) if p)
    hub_home = Path(env.get("HF_HOME") or user_cache / "huggingface").expanduser()
    return Settings(
        home=home,
        search=search,
        offline=env.get("RLDS_OFFLINE", "").lower() not in ("", "0", "false", "no"),
        hub=(env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/"),
        hub_token=env.get("HF_TOKEN") or _token_file(env, hub_home),
        hub_cache=Path(env.get("HF_HUB_CACHE") or hub_home / "hub").expanduser(),
        elsewhere=(
            Path(env.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets").expanduser(),
            Path(env.get("MINARI_DATASETS_PATH") or "~/.minari/datasets").expanduser(),
            Path("~/.ogbench/data").expanduser(),
        ),
        gcs=_endpoint(env, "RLDS_GCS_ENDPOINT", "STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com",
        mirrors=tuple(env.get("RLDS_MIRROR", "").replace(",", " ").split()),
        limit_rate=sizes.rate(limit) if (limit := env.get("RLDS_LIMIT_RATE")) else None,
        s3=_endpoint(env, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    )


def _endpoint(env: Mapping[str, str], *variables: str) -> str | None:
    """The first that is set, as a URL without a slash at its end; emulators are often named without a scheme."""
    found = next((env[name] for name in variables if env.get(name)), None)
    return found and (found if "://" in found else f"http://{found}").rstrip("/")


def _token_file(env: Mapping[str, str], hub_home: Path) -> str | None:
    path = Path(env.get("HF_TOKEN_PATH") or hub_home / "token").expanduser()
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
