"""Datasets that many tests begin with: each is made once, and copied into the home of every test that asks for it."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import rlds_cli
from rlds_cli.base import settings
from rlds_cli.dataset import Dataset

room: Path | None = None  # the directory of this run; without one, everything is made where it is asked for
_asked: set[str] = set()


def made_once(id: str, make: Callable[[], Dataset], *given: object) -> Dataset:
    """Return the dataset ``id`` that ``make`` makes of what is given, in the home of the test.

    A dataset that is asked for a second time is made in a home of its own; from then on, that home is copied. Where the
    home of the test has a dataset of this id, ``make`` replaces it.
    """
    os.umask(mask := os.umask(0o077))  # which decides who may read the files
    home, key = settings.read().home, hashlib.sha256(pickle.dumps((id, given, mask))).hexdigest()
    if room is None or key not in _asked or (home / "datasets" / id).exists():
        _asked.add(key)
        return make()
    if not (room / key).exists():
        with pytest.MonkeyPatch.context() as env:
            env.setenv("RLDS_HOME", str(room / key))
            make()
    shutil.copytree(room / key, home, dirs_exist_ok=True)
    return rlds_cli.open_dataset(id)


def sample_dataset(name: str) -> Dataset:
    """Return a sample dataset, as `rlds_cli.download` makes it."""
    id = f"sample/{name}"
    return made_once(id, lambda: rlds_cli.download(id))
