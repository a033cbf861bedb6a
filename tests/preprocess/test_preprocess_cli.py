"""``rlds preprocess`` as people type it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from made_once import sample_dataset

import rlds_cli
from rlds_cli.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def pendulum():
    return sample_dataset("pendulum-d4rl")


@pytest.fixture
def rlds(tmp_path, monkeypatch, capfd):
    """Run ``rlds ARGS`` as its entry point does, in a directory of the user's, without modules of an earlier run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["rlds", *map(str, words)])
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code or 0
        for name in ("my_prep", "mine", "two", "same", "sum", "divide"):
            sys.modules.pop(name, None)
        said = capfd.readouterr()
        return SimpleNamespace(returncode=code, stdout=said.out, stderr=said.err)

    return run


@pytest.mark.thorough
def test_try_then_make_then_find_it_made(pendulum, rlds, home):
    words = ("preprocess", "sample/pendulum-d4rl", "--fn", f"{EXAMPLES / 'normalise.py'}:normalise")
    tried = rlds(*words, "--try")
    assert tried.returncode == 0, tried.stderr
    lines = tried.stdout.splitlines()
    assert lines[0].startswith("normalise(episode) on episode 0 (200 steps), ")
    assert lines[1].split()[:4] == ["observation", "float32", "[201,", "3]"] and "→" in lines[1]
    assert lines[2].split()[:3] == ["observation_raw", "new", "→"]
    assert lines[3].strip().startswith("action, ") and lines[3].endswith("untouched: linked, 0 B")
    assert lines[4].endswith("Run without --try to make sample/pendulum-d4rl@normalise")
    assert not (home / "datasets/sample/pendulum-d4rl@normalise").exists()

    made = rlds(*words, "-j", "2")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("sample/pendulum-d4rl@normalise   rlds1:")
    assert " on disk, " in made.stdout and "shared with its source" in made.stdout

    again = rlds(*words, "--json")
    found = json.loads(again.stdout)
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl@normalise")
    assert (found["id"], found["fingerprint"], found["steps"]) == (ds.id, ds.fingerprint, ds.num_steps)
    assert found["bytes"] == found["added"] + found["shared"] and found["shared"] > 0


def test_arguments_are_read_as_values(pendulum, rlds):
    fn = f"{EXAMPLES / 'filter_episodes.py'}:good_episodes"
    made = rlds("preprocess", "sample/pendulum-d4rl", "--fn", fn, "--arg", "at_least=-900.5", "--name", "best")
    assert made.returncode == 0, made.stderr
    best = rlds_cli.open_dataset("sample/pendulum-d4rl@best")
    assert best.num_episodes == int((pendulum.episodes["total_reward"] >= -900.5).sum())
    assert best.manifest.provenance[-1]["args"] == {"at_least": -900.5}
    other = rlds("preprocess", "sample/pendulum-d4rl", "--fn", fn, "--arg", "at_least=0", "--name", "best")
    assert other.returncode == 1 and "NameTaken: sample/pendulum-d4rl@best exists" in other.stderr
    assert rlds("preprocess", "sample/pendulum-d4rl", "--fn", fn, "--arg", "at_least").returncode == 2


@pytest.mark.slow
def test_a_module_of_the_current_directory_fields_and_unit(pendulum, rlds, tmp_path):
    (tmp_path / "my_prep.py").write_text(
        "print('imported')\n"
        "def halve(batch):\n    print('called')\n    batch['next']['reward'] /= 2\n    return batch\n"
    )
    made = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "my_prep:halve", "--unit", "batch", "--fields",
                "next/reward", "--json", "--arrays", "torch")  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["id"] == "sample/pendulum-d4rl@halve"  # what functions print is not a result
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl@halve")
    assert np.array_equal(ds.column("next/reward"), pendulum.column("next/reward") / 2)


def test_a_failure_names_the_episode_and_its_command_shows_the_traceback(pendulum, rlds, tmp_path):
    (tmp_path / "my_prep.py").write_text(
        "def norm(e):\n    if e['next']['truncated'][-1] and len(e['action']) < 200:\n"
        "        return e['nothing']\n    return e\n"
    )
    failed = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "my_prep:norm")
    assert failed.returncode == 1 and failed.stdout == ""
    line, hint = failed.stderr.splitlines()[-2:]
    assert line.startswith("PreprocessError: my_prep:norm raised UnknownField: no field 'nothing' in this batch.")
    assert "(my_prep.py, line 3) on episode 25 (100 steps)" in line
    command = "rlds preprocess sample/pendulum-d4rl --fn my_prep:norm --episode 25 -j 0"
    assert hint == f"  hint: {command}"
    shown = rlds(*command.split()[1:])
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr and "return e['nothing']" in shown.stderr


@pytest.mark.thorough
def test_what_is_not_there(pendulum, rlds):
    for words, text in (
        (("sample/pendulum", "--fn", "a:b"), "DatasetNotFound"),
        (("sample/pendulum-d4rl", "--fn", "a:b"), "There is no module a."),
        (("sample/pendulum-d4rl", "--fn", "norm"), "names neither a function in a module"),
        (("sample/pendulum-d4rl", "--fn", f"{EXAMPLES / 'normalise.py'}:normalize"), 'Did you mean "normalise"?'),
    ):
        failed = rlds("preprocess", *words)
        assert failed.returncode == 1 and text in failed.stderr and "Traceback" not in failed.stderr
    assert rlds("preprocess", "sample/pendulum-d4rl").returncode == 2


def test_a_script_without_a_main_part_works_in_its_own_process(pendulum, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "from rlds_cli import preprocess\nfrom rlds_cli.preprocess import job\njob.PART_ROWS = 512\n"
        "def double(e):\n    e['action'] *= 2\n    return e\n"
        "ds = preprocess.run('sample/pendulum-d4rl', double, jobs=2, progress=lambda e: e.note and print(e.note))\n"
        "print(ds.id)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "workers would run train.py again" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "sample/pendulum-d4rl@double"


@pytest.mark.slow
def test_the_example_in_torchrls_manner_runs(pendulum):
    done = subprocess.run([sys.executable, str(EXAMPLES / "obs_norm.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    norm = rlds_cli.open_dataset("sample/pendulum-d4rl@obs_norm").episode(0)["obs_norm"][:, 0]
    assert np.allclose(norm, np.linalg.norm(pendulum.episode(0)["observation"], axis=1), rtol=1e-6)


# -- built-in functions


def test_the_built_in_functions_are_listed(rlds):
    listed = rlds("preprocess", "--list")
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("resize "))
    assert lines[at].split() == ["resize", "size=...", "[fields]", "[codec=raw]", "[quality=95]"]
    assert lines[at + 1] == "    Resize frames to a height and width, bilinear and antialiased."
    assert lines[at + 2] == "    while loading: Loader(ds, transform=Resize(field, size))"
    found = json.loads(rlds("preprocess", "--list", "--json").stdout)
    assert found[0]["name"] == "normalise" and found[0]["loader"].startswith("Loader(")
    assert found[0]["arguments"][1] == {"name": "mode", "required": False, "default": "std"}


def test_a_built_in_function_by_name(pendulum, rlds):
    words = ("preprocess", "sample/pendulum-d4rl", "--fn", "select-episodes", "--name", "best")
    made = rlds(*words, "--arg", "where=total_reward > -200 and length >= 150")
    assert made.returncode == 0, made.stderr
    total, length = pendulum.episodes["total_reward"], pendulum.episodes["length"]
    best = rlds_cli.open_dataset("sample/pendulum-d4rl@best")
    assert 0 < best.num_episodes == int(((total > -200) & (length >= 150)).sum()) < len(total)
    tried = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "top_episodes", "--arg", "percent=8", "--episode", "1")
    assert tried.returncode == 0 and "@top_episodes" in tried.stdout
    beyond = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "top_episodes", "--arg", "percent=8", "--episode", "2")
    assert beyond.returncode == 1 and "has no episode 2" in beyond.stderr


def test_what_is_missing_is_wrong_usage(pendulum, rlds):
    for words, text in (
        ((), "ID"),
        (("sample/pendulum-d4rl",), "--fn"),
        (("sample/pendulum-d4rl", "--fn", "normalise", "--shard", "2"), "is not I/N"),
        (("sample/pendulum-d4rl", "--fn", "normalise", "--shard", "1/2", "--finish"), "only one of them may be given"),
        (("sample/pendulum-d4rl", "--fn", "normalise", "--executor", "ray", "--shard", "1/2"), "on a whole job only"),
        (("sample/pendulum-d4rl", "--fn", "normalise", "--address", "127.0.0.1:1"), "needs --executor ray"),
    ):
        failed = rlds("preprocess", *words)
        assert failed.returncode == 2 and text in failed.stderr, failed.stderr


# -- shards


@pytest.mark.slow
def test_shards_and_the_finish(pendulum, rlds, home):
    words = ("preprocess", "sample/pendulum-d4rl", "--fn", f"{EXAMPLES / 'normalise.py'}:normalise")
    nothing = rlds(*words, "--finish")
    assert nothing.returncode == 1 and "There is no shard of sample/pendulum-d4rl@normalise" in nothing.stderr
    first = rlds(*words, "--shard", "1/2")  # one chunk in all: shard 2 has it
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        "sample/pendulum-d4rl@normalise, shard 1/2: 0 chunks, 0 rows",
        "missing shards: 2/2",
    ]
    early = rlds(*words, "--finish")
    assert early.returncode == 1
    assert "shard 2/2 is not finished: 1 of 1 chunks are missing. Nothing was published." in early.stderr
    assert "the same command with --shard 2/2 instead of --finish" in early.stderr
    second = rlds(*words, "--shard", "2/2", "--json")
    assert json.loads(second.stdout)["missing"] == [] and json.loads(second.stdout)["rows"] == 5126
    made = rlds(*words, "--finish", "--json")
    assert made.returncode == 0, made.stderr
    again = rlds(*words, "--shard", "2/2")
    assert again.stdout == "sample/pendulum-d4rl@normalise already exists\n"
    assert rlds(*words, "--name", "alone", "--json").returncode == 0
    ours, alone = (rlds_cli.open_dataset(f"sample/pendulum-d4rl@{n}") for n in ("normalise", "alone"))
    assert ours.fingerprint == alone.fingerprint == json.loads(made.stdout)["fingerprint"]
    bad = rlds(*words, "--name", "other", "--shard", "3/2")
    assert bad.returncode == 1 and "There is no shard (3, 2)" in bad.stderr


@pytest.mark.filterwarnings("ignore:overflow")
def test_what_is_wrong_with_a_result_is_said_and_info_tells_the_chain_back_to_the_archive(pendulum, rlds, tmp_path):
    (tmp_path / "divide.py").write_text("def by_zero(e, by):\n    e['action'] = e['action'] / by\n    return e\n")
    made = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "divide.py:by_zero", "--arg", "by=1e-44", "--name", "bad")
    assert made.returncode == 0 and "error: not-finite: " in made.stdout and " in action" in made.stdout
    rlds("preprocess", "sample/pendulum-d4rl@bad", "--fn", "return_to_go", "--name", "worse")
    chain = rlds("info", "sample/pendulum-d4rl@worse").stdout.split("made of")[1]
    archive = json.loads(rlds("info", "sample/pendulum-d4rl", "--json").stdout)["entry"]["files"][0]["sha256"]
    code = rlds_cli.open_dataset("sample/pendulum-d4rl@worse").manifest.provenance[0]["code"]
    assert archive in " ".join(chain.split())
    assert "by divide.py:by_zero(by=1e-44), source " + code[:8] in " ".join(chain.split())
    assert chain.index(archive[:8]) < chain.index("divide.py") < chain.index("return_to_go()")


def test_a_file_with_one_function_is_enough(pendulum, rlds, tmp_path):
    source = """
def _twice(x):
    return 2 * x

def double(episode):
    episode["action"] = _twice(episode["action"])
    return episode
"""
    (tmp_path / "mine.py").write_text(source)
    made = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "mine.py")
    assert made.returncode == 0, made.stderr
    ds = rlds_cli.open_dataset("sample/pendulum-d4rl@double")
    assert np.array_equal(ds.column("action"), 2 * pendulum.column("action"))
    assert "removed" not in made.stderr

    (tmp_path / "two.py").write_text("def a(x):\n    return x\n\ndef b(x):\n    return x\n")
    refused = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "two.py")
    assert refused.returncode == 1
    assert "two.py defines 2 functions: a, b." in refused.stderr and "--fn two.py:a" in refused.stderr


def test_fields_that_a_function_leaves_out_are_named_before_the_run(pendulum, rlds, tmp_path):
    (tmp_path / "sum.py").write_text("def total(episode):\n    return {'total': episode['next']['reward'].cumsum()}\n")
    tried = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "sum.py", "--try")
    names = [name for name in pendulum.schema if name not in ("next/terminated", "next/truncated")]
    lost = f"{len(names)} fields would be removed, which total does not return: {', '.join(names)}."
    assert len(names) < 9 and lost in tried.stdout and "return {**data, ...} keeps them" in tried.stdout
    made = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "sum.py")
    assert made.returncode == 0 and lost in made.stderr
    dropped = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "select_fields", "--arg", "drop=action")
    assert dropped.returncode == 0 and "would be removed" not in dropped.stderr


def test_an_argument_that_is_spelt_otherwise(pendulum, rlds, tmp_path):
    wrong = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "select_fields", "--arg", "field=action")
    assert wrong.returncode == 1 and "--arg fields=VALUE instead of field" in wrong.stderr
    (tmp_path / "same.py").write_text("def same(episode):\n    return episode\n")
    other = rlds("preprocess", "sample/pendulum-d4rl", "--fn", "same.py", "--arg", "field=action")
    assert other.returncode == 1 and "--fields NAME,NAME" in other.stderr
