from __future__ import annotations

import pytest

from rlds_cli.base import ids
from rlds_cli.errors import InvalidId


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "family", "name", "variant", "component"),
    [
        ("d4rl/hopper-medium-v2", "d4rl", "hopper-medium-v2", None, "hopper-medium-v2"),
        ("minari/mujoco/hopper/expert-v0", "minari", "mujoco/hopper/expert-v0", None, "mujoco+hopper+expert-v0"),
        ("d4rl/pen@norm", "d4rl", "pen", "norm", "pen@norm"),
        ("local/_x", "local", "_x", None, "_x"),
        ("a/B.c@D_1.e-2", "a", "B.c", "D_1.e-2", "B.c@D_1.e-2"),
    ],
)
def test_an_id_comes_back_as_it_was(text: str, family: str, name: str, variant: str | None, component: str) -> None:
    id = ids.parse(text)
    assert (id.family, id.name, id.variant, id.component) == (family, name, variant, component)
    assert str(id) == text
    assert ids.from_component(family, component) == id


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "",
        "hopper",
        "/etc/passwd",
        "d4rl/",
        "d4rl//x",
        "d4rl/../x",
        "d4rl/..",
        "d4rl/.hidden",
        "d4rl/x/..",
        "../d4rl/x",
        "D4RL/x",
        "d4rl/x@",
        "d4rl/x@.hidden",
        "d4rl/x@a/b",
        "d4rl/x@a@b",
        "d4rl/x y",
        "d4rl/x;rm",
        "d4rl/x+y",
        "d4rl/x\n",
        "d4rl/x\0",
        "d4rl/é",
        "d4rl\\x",
        "~/x",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidId, match="is not a dataset id") as caught:
        ids.parse(text)
    assert "family/name" in str(caught.value)


def test_a_bare_name_is_told_where_own_datasets_are() -> None:
    with pytest.raises(InvalidId, match="local/arm-2 for your own"):
        ids.parse("arm-2")
    with pytest.raises(InvalidId) as caught:
        ids.parse("a b")
    assert "your own" not in str(caught.value)


def test_base_and_variants() -> None:
    id = ids.parse("d4rl/pen")
    assert str(id.with_variant("norm")) == "d4rl/pen@norm"
    assert id.with_variant("norm").base == id
    for name in ("", "a/b", ".a", "a b", "..", "a@b"):
        with pytest.raises(InvalidId, match="cannot name a variant"):
            id.with_variant(name)


def test_no_two_ids_share_a_directory() -> None:
    texts = ["a/b/c", "a/b", "a/b@c", "a/b/c@d", "a/bc", "a/b/c/d"]
    assert len({ids.parse(t).component for t in texts}) == len(texts)


def test_an_id_fits_into_a_file_name() -> None:
    assert ids.parse("local/" + "x" * 194).name == "x" * 194
    with pytest.raises(InvalidId, match=r"local/x+\.\.\. has 201 characters; an id has at most 200"):
        ids.parse("local/" + "x" * 195)
    with pytest.raises(InvalidId, match="at most 200"):
        ids.parse("local/x").with_variant("v" * 200)
