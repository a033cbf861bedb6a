"""Finding the user's function, and what it is made of."""

import functools
import hashlib
import pickle
import sys
from pathlib import Path

import numpy as np
import preprocess_functions as module
import pytest

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.base.files import modules
from rlds_cli.errors import PreprocessError
from rlds_cli.preprocess import find_function, sources, unit


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory as users have them: modules, a package, one that is broken."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "prep_one.py": "import prep_two, numpy\nfrom prep_pkg.inner import depth\nX = 3\ndef norm(e): return e\n"
        "def crop(e): return e\n",
        "prep_two.py": "def other(): ...\n",
        "prep_three.py": "def unused(): ...\n",
        "prep_pkg/__init__.py": "",
        "prep_pkg/inner.py": "from . import sibling\nfrom .sibling import value\ndepth = 1\ndef deep(e): return e\n",
        "prep_pkg/sibling.py": "value = 2\n",
        "prep_broken.py": "import not_installed_anywhere\n",
        "prep_syntax.py": "def f(:\n",
        "prep_exits.py": "raise SystemExit(1)\n",
        "lazy.py": "def f(e):\n    import prep_two\n    return e\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.thorough
def test_a_file_is_found_and_made_of_what_it_imports_from_the_users_path(project):
    f = find_function("prep_one.py:norm")
    names = ["prep_one.py", "prep_pkg/__init__.py", "prep_pkg/inner.py", "prep_pkg/sibling.py", "prep_two.py"]
    assert f.files == tuple((n, sha(project / n)) for n in names)
    assert f.load()(5) == 5 and f.name == "norm" and f.portable
    assert find_function("./prep_one.py:norm").code == f.code == find_function(str(project / "prep_one.py:norm")).code
    assert [n for n, _ in find_function("lazy.py:f").files] == ["lazy.py", "prep_two.py"]


def test_a_module_is_found_below_the_current_directory(project):
    with modules.importable((str(project),)):
        f = find_function("prep_pkg.inner:deep")
        assert [n for n, _ in f.files] == ["prep_pkg/__init__.py", "prep_pkg/inner.py", "prep_pkg/sibling.py"]
        copy = pickle.loads(pickle.dumps(f))
        assert copy.call is None and copy.load()(7) == 7


def test_an_edited_file_is_run_as_it_is_now(project, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (project / "now.py").write_text("def f(e): return 1\n")
    before = find_function("now.py:f")
    (project / "now.py").write_text("def f(e): return 2\n")
    after = find_function("now.py:f")
    assert (before.load()(0), after.load()(0)) == (1, 2) and before.code != after.code


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("norm", '"norm" names neither a function in a module'),
        ("prep_one.py:", "names neither a function"),
        ("prep_on.py:norm", 'There is no file .*prep_on.py. Did you mean "prep_one.py"'),
        ("prep_oen:norm", 'There is no module prep_oen. Did you mean "prep_one.*Searched: '),
        ("prep_pkg.inn:norm", "There is no module prep_pkg.inn"),
        ("prep-one:norm", '"prep-one" cannot be the name of a module'),
        (
            "prep_one.py:nrom",
            'There is no function nrom in prep_one.py. Did you mean "norm.*Functions there: crop, norm',
        ),
        ("prep_one.py:X", "prep_one.py:X is a int, not a function"),
        ("prep_one:nrom", 'There is no function nrom in prep_one. Did you mean "norm"'),
        (
            "prep_broken:f",
            "prep_broken cannot be imported: ModuleNotFoundError: .*not_installed_anywhere.*prep_broken.py, line 1",
        ),
        ("prep_broken.py:f", "prep_broken.py cannot be imported: ModuleNotFoundError"),
        ("prep_syntax.py:f", "cannot be imported: SyntaxError"),
        ("prep_exits.py:f", "cannot be imported: SystemExit: 1"),
        ("/etc:f", "There is no file /etc"),
    ],
)
def test_what_is_not_found_is_explained(project, reference, message):
    with pytest.raises(PreprocessError, match=message):
        find_function(reference)


@pytest.mark.thorough
def test_a_callable_of_a_module_and_its_reference_are_one():
    given, named = find_function(module.good), find_function("preprocess_functions:good")
    assert (given.code, given.name) == (named.code, named.name)
    assert given.module == "preprocess_functions" and given.pickled is None


def test_functions_without_a_module_are_known_by_their_code():
    def scaled(k):
        return lambda e: e * k

    def other(k):
        return lambda e: e + k

    code = {find_function(f).code for f in (scaled(2), scaled(2), scaled(3), other(2))}
    assert len(code) == 3
    assert find_function(scaled(2)).reference == "<lambda>"
    assert pickle.loads(pickle.dumps(find_function(scaled(4)))).load()(2) == 8


@pytest.mark.thorough
def test_partials_and_objects_are_known_by_what_they_hold():
    partials = [find_function(functools.partial(module.good, at_least=n)) for n in (1, 1, 2)]
    assert partials[0].code == partials[1].code != partials[2].code
    assert [f.name for f in partials] == ["good"] * 3 and partials[0].files == find_function(module.good).files
    arrays = [find_function(functools.partial(module.good, at_least=np.array(n))).code for n in ([1.0], [1.0], [2.0])]
    assert arrays[0] == arrays[1] != arrays[2]


def test_the_decorator_says_the_unit_and_leaves_the_function_alone():
    assert find_function(module.normalise_batch).unit == "batch"
    assert find_function(module.good).unit is None
    assert find_function(functools.partial(module.normalise_step)).unit == "step"

    @unit("batch")
    def f(b):
        """Doc."""
        return b

    assert f(3) == 3 and f.__doc__ == "Doc."


def test_libraries_are_not_followed():
    files = sources.imported(Path(module.__file__), [Path.cwd()]).files
    assert [Path(n).name for n, _ in files] == ["preprocess_functions.py"]


def test_several_functions_are_run_one_after_the_other():
    ds = rlds_cli.create("local/two", [{"observation": np.zeros((3, 1)), "action": np.zeros((2, 1))}])
    with pytest.raises(PreprocessError, match="one is run at a time"):
        preprocess.run(ds, ["cast", "scale_reward"])
