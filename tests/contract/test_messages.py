"""Messages of errors: one line each, and those of the library are those of the command."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.cli import main
from rlds_cli.cli.commands import app
from rlds_cli.errors import CorruptArchive, InvalidArgument, PreprocessError, RldsError, UnknownLayout, UnsafeArchive
from rlds_cli.make.importing import import_files

assert main


def test_lines_of_a_quoted_error_become_one() -> None:
    def fails(episode: object) -> object:
        raise ValueError("shapes differ:\n  [3]\n  [4]")

    ds = rlds_cli.create("local/short", [{"observation": np.zeros((3, 1)), "action": np.zeros(2)}])
    with pytest.raises(PreprocessError, match=r"shapes differ: \[3\] \[4\]") as e:
        preprocess.run(ds, fails, "bad")
    assert "\\n" not in e.value.message


def test_an_error_in_another_text_is_its_message() -> None:
    error = InvalidArgument("x=0 is too few.", hint="x=1")
    assert f"{error}" == "x=0 is too few." and f"{error:.3}" == "x=0" and str(error).endswith("hint: x=1")
    try:
        raise error
    except ValueError as e:
        assert RldsError(f"It cannot be read: {e}").message == "It cannot be read: x=0 is too few."
        assert RldsError(f"It cannot be read: {e!s}").message == "It cannot be read: x=0 is too few. hint: x=1"
    assert RldsError("a name\nof two lines").message == "a name\\nof two lines"  # no error: it may be a stranger's


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("run.pkl", pickle.dumps({"observation": [1]}), UnsafeArchive),
        ("page.h5", b"<!DOCTYPE html><html>404</html>", CorruptArchive),
        ("empty.bin", b"", CorruptArchive),
        ("odd.bin", bytes(range(200)), UnknownLayout),
        ("empty.npz", b"", UnknownLayout),
        ("objects.npy", None, UnsafeArchive),
    ],
)
def test_the_library_says_of_a_file_what_the_command_says(
    tmp_path: Path, name: str, content: bytes | None, kind: type[RldsError]
) -> None:
    if content is None:
        np.save(tmp_path / name, np.array([{}], object))
    else:
        (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(RldsError) as e:
            import_files(path, "local/x")
        found = CliRunner().invoke(app, ["import", str(path), "--name", "local/x"])
        assert type(e.value) is type(found.exception) is kind
        assert isinstance(found.exception, RldsError) and found.exception.message == e.value.message
