from __future__ import annotations

import pytest

from rlds_cli import ids
from rlds_cli.errors import InvalidId


def test_base_and_variants() -> None:
    id = ids.parse("d4rl/pen")
    assert str(id.with_variant("norm")) == "d4rl/pen@norm"
    assert id.with_variant("norm").base == id
    for name in ("", "a/b", ".a", "a b", "..", "a@b"):
        with pytest.raises(InvalidId, match="cannot name a variant"):
            id.with_variant(name)


def test_an_id_fits_into_a_file_name() -> None:
    assert ids.parse("local/" + "x" * 194).name == "x" * 194
    with pytest.raises(InvalidId, match=r"local/x+\.\.\. has 201 characters; an id has at most 200"):
        ids.parse("local/" + "x" * 195)
    with pytest.raises(InvalidId, match="at most 200"):
        ids.parse("local/x").with_variant("v" * 200)
