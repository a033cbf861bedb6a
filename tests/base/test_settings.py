from __future__ import annotations

from pathlib import Path

import pytest

from rlds_cli.base import settings


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environ", "given", "home"),
    [
        ({}, None, "~/.cache/rlds"),
        ({"XDG_CACHE_HOME": "/x"}, None, "/x/rlds"),
        ({"XDG_CACHE_HOME": ""}, None, "~/.cache/rlds"),
        ({"XDG_CACHE_HOME": "/x", "RLDS_HOME": "/y"}, None, "/y"),
        ({"RLDS_HOME": "/y"}, "/z", "/z"),
        ({"RLDS_HOME": "~/data"}, None, "~/data"),
    ],
)
def test_where_the_home_is(environ: dict[str, str], given: str | None, home: str) -> None:
    assert settings.read(given, environ).home == Path(home).expanduser()


def test_relative_homes_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = settings.read(environ={"RLDS_HOME": "here", "RLDS_PATH": "there:/abs"})
    assert where.home == tmp_path / "here"
    assert where.search == (tmp_path / "there", Path("/abs"))


def test_homes_to_search_are_named_once_own_first() -> None:
    where = settings.read(environ={"RLDS_HOME": "/a", "RLDS_PATH": "/b::/a:/c"})
    assert where.homes == (Path("/a"), Path("/b"), Path("/c"))


@pytest.mark.thorough
@pytest.mark.parametrize(("text", "offline"), [("1", True), ("true", True), ("0", False), ("", False), ("no", False)])
def test_offline(text: str, offline: bool) -> None:
    assert settings.read(environ={"RLDS_OFFLINE": text}).offline is offline


def test_the_hub_and_its_token(tmp_path: Path) -> None:
    plain = settings.read(environ={"HF_HOME": str(tmp_path)})
    assert (plain.hub, plain.hub_token) == ("https://huggingface.co", None)
    (tmp_path / "token").write_text("hf_file\n")
    assert settings.read(environ={"HF_HOME": str(tmp_path)}).hub_token == "hf_file"
    both = settings.read(environ={"HF_HOME": str(tmp_path), "HF_TOKEN": "hf_env", "HF_ENDPOINT": "http://127.0.0.1:1/"})
    assert (both.hub, both.hub_token) == ("http://127.0.0.1:1", "hf_env")


def test_a_token_never_shows() -> None:
    assert "hf_secret" not in repr(settings.read(environ={"HF_TOKEN": "hf_secret"}))


def test_the_home_of_an_unknown_user_is_a_directory_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings.read("~nobody-at-all/x").home == tmp_path / "~nobody-at-all/x"
