"""``rlds doctor``: what is installed, where the home is, and what is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli.look.report.doctor import EXTRAS


def test_it_names_the_home_and_what_is_installed(home: Path) -> None:
    rlds_cli.download("sample/pendulum-d4rl")
    done = run_rlds("doctor")
    assert done.returncode == 0 and "no problems" in done.stdout.decode()
    found = json.loads(run_rlds("doctor", "--json").stdout)
    assert (found["home"], found["datasets"], found["torch"]) == (str(home), 1, version("torch"))
    assert {"arrow", "video", "ros"} <= set(found["extras"]) and found["problems"] == []


def test_it_knows_the_extras_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {k: v for k, v in project["optional-dependencies"].items() if k not in ("all", "dev", "bench")}
    assert set(EXTRAS) == set(extras)
    (everything,) = project["optional-dependencies"]["all"]
    assert set(re.findall(r"\w+", everything.partition("[")[2])) == set(extras) - {"ray", "jpegxl", "rerun"}


def test_what_is_wrong_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "nowhere"))
    (tmp_path / "lab.jsonl").write_text("no line of a registry\n")
    monkeypatch.setenv("RLDS_REGISTRY", str(tmp_path / "lab.jsonl"))
    done = run_rlds("doctor")
    said = done.stdout.decode()
    assert done.returncode == 1 and "nowhere" in said and "lab.jsonl" in said
