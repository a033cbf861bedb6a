from __future__ import annotations

import json
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as g
from hypothesis import given, settings
from hypothesis import strategies as st
from minari.serialization import serialize_space

from rlds_cli.errors import ArchiveError, MissingPackage
from rlds_cli.ted import Field, Space

SPACES = [
    g.Box(-np.inf, np.inf, (3,), np.float32),
    g.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 0.1]), dtype=np.float64),
    g.Box(0, 255, (4, 5, 3), np.uint8),
    g.Box(0.25, 0.5, (), np.float32),
    g.Box(-(2**62), 2**62, (2,), np.int64),
    g.Discrete(5),
    g.Discrete(5, start=-2),
    g.MultiDiscrete([2, 3], start=[-1, 4]),
    g.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32),
    g.MultiBinary(4),
    g.MultiBinary([2, 3]),
    g.Text(5, min_length=0, charset="aé漢"),
    g.Tuple([g.Discrete(2), g.Tuple([g.MultiBinary(1)])]),
    g.Dict({"b": g.Discrete(2), "a": g.Dict({"x/y": g.Box(0, 1, (1,))}), "t": g.Tuple([g.Text(3), g.Discrete(2)])}),
    g.Dict({}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back_from_what_minari_writes_and_from_what_we_write(space: Any) -> None:
    text = serialize_space(space)
    assert Space(json.loads(text)).build() == space
    ours = Space.of(space).form
    assert ours == json.loads(text) | ({"dtype": "int64"} if isinstance(space, g.Discrete) else {})
    assert Space(json.loads(json.dumps(ours))).build() == space


def test_bare_infinities() -> None:
    text = '{"type": "Box", "dtype": "float32", "shape": [2], "low": [-Infinity, 0.1], "high": [Infinity, Infinity]}'
    low, high = np.array([-np.inf, 0.1], np.float32), np.array([np.inf, np.inf], np.float32)
    assert Space(json.loads(text)).build() == g.Box(low, high, dtype=np.float32)


def test_infinities_as_strings_as_a_manifest_holds_them() -> None:
    d = {"type": "Box", "dtype": "float64", "shape": [2], "low": ["-Infinity", 0.1], "high": "Infinity"}
    assert Space(d).build() == g.Box(np.array([-np.inf, 0.1]), np.array([np.inf, np.inf]), dtype=np.float64)


def test_one_number_for_all_bounds() -> None:
    d = {"type": "Box", "dtype": "uint8", "shape": [64, 64, 3], "low": 0, "high": 255}
    assert Space(d).build() == g.Box(0, 255, (64, 64, 3), np.uint8)


def test_what_old_files_leave_out() -> None:
    assert Space({"type": "Discrete", "n": 3}).build() == g.Discrete(3)
    assert Space({"type": "MultiDiscrete", "nvec": [2, 3]}).build() == g.MultiDiscrete([2, 3])
    assert Space({"type": "Text", "max_length": 4}).build() == g.Text(4)


def test_large_float32_bounds_raise_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for space in SPACES:
            Space(json.loads(serialize_space(space))).build()


def test_the_order_of_keys_is_that_of_the_description() -> None:
    box = {"type": "Discrete", "n": 2}
    assert list(Space({"type": "Tuple", "subspaces": [box, box]}).build()) == [g.Discrete(2), g.Discrete(2)]


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"type": "Graph"}, '"Graph" cannot be rebuilt'),
        ({}, '"None" cannot be rebuilt'),
        ({"type": "Discrete"}, "Discrete space lacks 'n'"),
        ({"type": "Dict", "subspaces": {"a": {"type": "Box", "shape": [1]}}}, "Box space lacks 'dtype'"),
    ],
)
def test_what_cannot_be_rebuilt(description: dict[str, Any], words: str) -> None:
    with pytest.raises(ArchiveError, match=words):
        Space(description).build()


def test_a_space_without_a_json_form() -> None:
    with pytest.raises(ArchiveError, match="OneOf"):
        Space.of(g.OneOf([g.Discrete(2), g.Discrete(3)]))


def test_without_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingPackage, match=r"rlds-cli\[spaces\]"):
        Space({"type": "Discrete", "n": 3}).build()


def test_the_module_does_not_import_gymnasium() -> None:
    code = "import sys, rlds_cli.ted.spaces; print('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_parts_of_a_space() -> None:
    space = json.loads(serialize_space(SPACES[-2]))
    assert Space(space).at(["a", "x/y"]).type == "Box"
    assert Space(space).at(["t", "_index_1"]).type == "Discrete"
    assert Space(space).at(["t", "0"]).type == "Text"
    for path in (["t", "2"], ["t", "x"], ["zz"], ["b", "c"]):
        assert Space(space).at(path).form is None
    assert Space(None).at(["a"]).form is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("space", SPACES[:12], ids=str)
def test_the_shape_of_a_value(space: Any) -> None:
    assert Space(json.loads(serialize_space(space))).row_shape == (space.shape or ())


def test_inferred_spaces_hold_the_values() -> None:
    fields = [
        Field("observation/a", "float32", (3,), "both"),
        Field("observation/b/c", "uint8", (8, 8, 3), "both", "frames", "jpeg"),
        Field("observation/b/d", "str", (), "both", "text"),
        Field("action", "bool", (2,)),
    ]
    observation = Space.inferred(fields, "observation").build()
    word = "a sentence, and (more)."
    value = {"a": np.float32([np.inf, 1, -9]), "b": {"c": np.full((8, 8, 3), 255, np.uint8), "d": word}}
    assert observation.contains(value)
    assert Space.inferred(fields, "action").build().contains(np.array([1, 0], np.int8))
    assert Space.inferred(fields, "nothing").form is None


number = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([np.inf, -np.inf]))
leaf = st.one_of(
    st.builds(lambda n, s: g.Discrete(n, start=s), st.integers(1, 9), st.integers(-9, 9)),
    st.builds(lambda v: g.MultiDiscrete(v), st.lists(st.integers(1, 9), min_size=1, max_size=4)),
    st.builds(g.MultiBinary, st.integers(1, 5)),
    st.builds(
        lambda pairs: g.Box(
            np.array([min(p) for p in pairs], np.float32),
            np.array([max(p) for p in pairs], np.float32),
            dtype=np.float32,
        ),
        st.lists(st.tuples(number, number), min_size=1, max_size=4),
    ),
)
nested = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds(g.Tuple, st.lists(inner, min_size=1, max_size=3)),
        st.builds(g.Dict, st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3)),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@given(nested)
@settings(max_examples=30)
def test_any_space_comes_back(space: Any) -> None:
    assert Space(json.loads(serialize_space(space))).build() == space
    assert Space(json.loads(json.dumps(Space.of(space).form))).build() == space
