import hashlib
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import h5py
import numpy as np
import pytest

import rlds_cli
from rlds_cli import homes, registry
from rlds_cli.base import citing, ids
from rlds_cli.errors import UnknownDataset
from rlds_cli.registry import lookup, package
from rlds_cli.registry.facts import ENTRY_KEYS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rlds_cli"
FACTS = ROOT / "tests" / "data" / "registry-facts"


def all_entries():
    return [e for f in registry.families() for e in lookup.entries(f.name)]


def lines_of():
    """What stands in the files, by family: the truth for counts."""
    files = sorted((ROOT / "registry").glob("*.jsonl"))
    return {p.stem: [json.loads(line) for line in p.read_text().splitlines()] for p in files}


def test_counts():
    counts = {name: sum(e.get("status") != "closed" for e in lines) for name, lines in lines_of().items()}
    assert {f.name: f.num_entries for f in registry.families()} == counts
    assert counts | {"d4rl": 183, "minari": 392, "roboset": 20, "sample": 3} == counts


def test_ids_parse_and_name_their_family():
    for e in all_entries():
        parsed = ids.parse(e.id)
        assert (parsed.family, parsed.variant) == (e.family, None)


def test_d4rl_holds_every_fact():
    for fact in json.loads((FACTS / "d4rl.json").read_text()):
        e = registry.get(f"d4rl/{fact['id']}")
        assert set(fact["urls"]) <= set(e.files[0].urls)
        assert (e.size, e.sha256) == (fact.get("size_bytes"), fact.get("sha256"))
        assert (e.env_id, e.max_episode_steps) == (fact["env_id"], fact["max_episode_steps"])
        assert (e.ref_min_score, e.ref_max_score) == (fact.get("ref_min_score"), fact.get("ref_max_score"))


def test_minari_holds_every_fact():
    for fact in json.loads((FACTS / "minari.json").read_text()):
        e = registry.get(f"minari/{fact['id']}")
        assert e.id == f"minari/{fact['id']}"
        assert set(fact["urls"]) <= set(e.tree)
        assert (e.num_steps, e.num_episodes) == (fact["total_steps"], fact["total_episodes"])
        assert (e.env_id, e.ref_max_score) == (fact.get("env_id"), fact.get("ref_max_score"))


def test_roboset_holds_every_fact():
    for fact in json.loads((FACTS / "roboset.json").read_text()):
        e = registry.get(fact["id"])
        assert e.tree == (f"hf://datasets/{fact['hf_repo']}/{fact['hf_prefix']}",)
        assert (e.suffix, e.env_id) == (".h5", fact.get("env_id"))


def test_samples_are_as_their_entries_say():
    for e in lookup.entries("sample"):
        for f in e.files:
            data = (PACKAGE / f.urls[0].removeprefix("package:")).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (f.size, f.sha256)
        assert e.size == sum(f.size for f in e.files)


def test_samples_hold_what_their_entries_say():
    samples = PACKAGE / "samples"
    with h5py.File(samples / "pendulum-d4rl.hdf5") as f:
        ends = np.flatnonzero(f["timeouts"][:] | f["terminals"][:])
        told = len(f["actions"]), len(ends) + (ends[-1] + 1 < len(f["actions"])), f["observations"].shape[1]
    with h5py.File(samples / "cartpole-minari/data/main_data.hdf5") as f:
        cartpole = sum(len(f[k]["actions"]) for k in f), len(f)
    with h5py.File(samples / "mountaincar-robohive.h5") as f:
        mountaincar = sum(len(f[k]["actions"]) - 1 for k in f), len(f)  # the last row of a trial is not a step
    e = {e.id: e for e in lookup.entries("sample")}
    assert told == (e["sample/pendulum-d4rl"].num_steps, e["sample/pendulum-d4rl"].num_episodes, 3)
    assert cartpole == (e["sample/cartpole-minari"].num_steps, e["sample/cartpole-minari"].num_episodes)
    assert mountaincar == (e["sample/mountaincar-robohive"].num_steps, e["sample/mountaincar-robohive"].num_episodes)


@pytest.mark.parametrize(
    ("id", "rule"),
    [
        ("d4rl/hopper-medium-v2", "flags"),
        ("d4rl/door-human-v1", "flags"),
        ("d4rl/kitchen-complete-v0", "flags"),
        ("d4rl/antmaze-large-play-v2", "timeouts"),
        ("d4rl/antmaze-medium-play-v0", "jumps"),
        ("d4rl/antmaze-umaze-v0", "timeouts"),
        ("d4rl/maze2d-umaze-v1", "timeouts"),
        ("d4rl/maze2d-eval-large-dense-v1", "timeouts"),
        ("minari/D4RL/door/human-v2", None),
        ("roboset/dapg-expert/door_v2d-v1", None),
    ],
)
def test_where_episodes_end(id, rule):
    assert registry.get(id).episodes_by == rule


@pytest.mark.parametrize(
    ("id", "code", "ref"),
    [
        ("d4rl/maze2d-umaze-v1", "goal-switches", "Farama-Foundation/D4RL#85"),
        ("d4rl/maze2d-medium-dense-v0", "early-reward", "Farama-Foundation/D4RL#194"),
        ("d4rl/antmaze-large-play-v2", "goal-flags", "Farama-Foundation/D4RL#199"),
        ("d4rl/antmaze-umaze-diverse-v2", "goal-flags-single", "Farama-Foundation/D4RL#199"),
        ("d4rl/antmaze-large-diverse-v0", "timeouts-out-of-step", "Farama-Foundation/D4RL#77"),
        ("d4rl/hopper-medium-expert-v0", "expert-and-replay", "Farama-Foundation/D4RL#19"),
        ("d4rl/hopper-expert-v1", "swapped", "Farama-Foundation/D4RL#76"),
        ("d4rl/walker2d-medium-replay-v2", "timeouts-by-iteration", "Farama-Foundation/D4RL#162"),
        ("d4rl/halfcheetah-medium-v2", "never-terminates", "Farama-Foundation/D4RL#22"),
        ("d4rl/walker2d-medium-v1", "no-next-observations", "Farama-Foundation/D4RL#31"),
        ("d4rl/pen-human-v1", "two-lengths", "Farama-Foundation/D4RL#137"),
    ],
)
def test_known_defects(id, code, ref):
    defects = {d.code: d for d in registry.get(id).defects}
    assert ref in defects[code].refs
    assert f"https://github.com/{ref.replace('#', '/issues/')}" in defects[code].links


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("berkeley_autolab_ur5", "swapped-wrist-channels"),
        ("berkeley_fanuc_manipulation", "swapped-channels"),
        ("stanford_hydra_dataset_converted_externally_to_rlds", "swapped-channels"),
        ("utaustin_mutex", "swapped-channels"),
    ],
)
def test_swapped_colours_are_named(name, code):
    named = [d.code for d in registry.get(f"openx/{name}").defects if d.code.startswith("swapped")]
    assert named == [code]


def test_swapped_colours_are_named_nowhere_else():
    swapped = [e.id for e in lookup.entries("openx") if any(d.code.startswith("swapped") for d in e.defects)]
    assert len(swapped) == 4


def test_a_defect_is_not_everywhere():
    assert not {"goal-flags", "goal-switches"} & {d.code for d in registry.get("d4rl/hopper-medium-v2").defects}


def test_an_entry_takes_over_what_holds_for_its_family():
    e = registry.get("d4rl/hopper-medium-v2")
    assert (e.format, e.licence, e.paper) == ("d4rl", "CC BY 4.0", "arXiv:2004.07219")
    assert e.citation.startswith("@misc{fu2020d4rl,")
    assert registry.get("sample/cartpole-minari").format == "minari"


def test_several_urls():
    urls = registry.get("d4rl/hopper-medium-v2").files[0].urls
    assert urls[0] == "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"
    assert urls[1] == "hf://datasets/imone/D4RL/hopper_medium-v2.hdf5"
    assert registry.get("d4rl/hopper-medium-v2").files[0].path == "hopper_medium-v2.hdf5"


@pytest.mark.parametrize(
    ("ref", "id"),
    [
        ("d4rl/hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("D4RL/Hopper-Medium-V2", "d4rl/hopper-medium-v2"),
        (" d4rl/hopper-medium-v2/ ", "d4rl/hopper-medium-v2"),
        ("d4rl/hopper-medium-v2@norm", "d4rl/hopper-medium-v2"),
        ("minari/d4rl/door/human-v2", "minari/D4RL/door/human-v2"),
        ("DAPG(expert)/door_v2d-v1", "roboset/dapg-expert/door_v2d-v1"),
        ("hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("mujoco/hopper/expert-v0", "minari/mujoco/hopper/expert-v0"),
        ("D4RL/door/human-v2", "minari/D4RL/door/human-v2"),
        ("roboset/DAPG(expert)/door_v2d-v1", "roboset/dapg-expert/door_v2d-v1"),
        ("roboset/fk1-v4-expert/fk1_knob1onrandom_v2d-v4", "roboset/fk1-v4-expert/FK1_Knob1OnRandom_v2d-v4"),
        ("minari/Farama-Antmaze-v5/antmaze-umaze/expert-v1", "minari/antmaze-umaze/expert-v1"),
    ],
)
def test_get(ref, id):
    assert registry.get(ref).id == id


@pytest.mark.thorough
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("ref", "near"),
    [
        ("hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("d4rl/hopper_medium-v2", "d4rl/hopper-medium-v2"),
        ("mujoco/hoper/expert-v0", "minari/mujoco/hopper/expert-v0"),
        ("D4RL/dor/human-v2", "d4rl/door-human-v1"),
        ("toto", "openx/toto, lerobot/toto"),  # two families have it
        ("roboset/door_v2d-v1", "roboset/dapg-human/door_v2d-v1"),
        ("sample/pendulum", "sample/pendulum-d4rl"),
    ],
)
def test_did_you_mean(ref, near):
    with pytest.raises(UnknownDataset) as e:
        registry.get(ref)
    assert e.value.hint.startswith(f"did you mean {near}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ref", "versions"),
    [
        ("d4rl/hopper-medium", ["v2", "v1", "v0"]),
        ("hopper-medium", ["v2", "v1", "v0"]),
        ("d4rl/hopper-medium-v3", ["v2", "v1", "v0"]),
    ],
)
def test_suggestions_offer_the_newest_version_first(ref, versions):
    assert registry.suggest(ref) == [f"d4rl/hopper-medium-{v}" for v in versions]


def test_a_misspelt_word_finds_names_with_the_word():
    assert all("hopper" in id for id in registry.suggest("hoper"))


@pytest.mark.thorough
@pytest.mark.sampled(5)
@pytest.mark.parametrize("ref", ["", "/", "../etc/passwd", "zzzzzz", "/etc/passwd", "@norm", "d4rl/", "a b c", "💥"])
def test_what_is_no_id_is_unknown_and_says_what_to_type(ref):
    with pytest.raises(UnknownDataset, match="is not in the registry") as e:
        registry.get(ref)
    assert e.value.hint


def test_a_family_alone_says_how_to_see_it():
    with pytest.raises(UnknownDataset, match="that is a family: rlds list --family d4rl"):
        registry.get("D4RL")


@pytest.mark.thorough
def test_open_family():
    e = registry.get("minari/my-lab/reach/expert-v3")
    assert (e.id, e.format) == ("minari/my-lab/reach/expert-v3", "minari")
    assert e.tree == ("hf://datasets/farama-minari/my-lab/reach/expert-v3/data",)
    for bad in ("minari/../secret", "minari/a b", "minari/.hidden/x-v0", "minari/"):
        with pytest.raises(UnknownDataset):
            registry.get(bad)


def test_glob():
    assert [e.id for e in registry.match("d4rl/hopper-*-v2")] == [
        "d4rl/hopper-expert-v2",
        "d4rl/hopper-full-replay-v2",
        "d4rl/hopper-medium-expert-v2",
        "d4rl/hopper-medium-replay-v2",
        "d4rl/hopper-medium-v2",
        "d4rl/hopper-random-v2",
    ]
    assert len(registry.match("SAMPLE/*")) == 3
    assert len(registry.match("minari/D4RL/*")) == 34
    assert [e.id for e in registry.match("DAPG(human)/p*")] == ["roboset/dapg-human/pen_v2d-v1"]
    assert [e.id[-2:] for e in registry.match("d4rl/hopper-medium-v[12]")] == ["v1", "v2"]
    assert [e.id for e in registry.match("d4rl/hopper-medium-v2")] == ["d4rl/hopper-medium-v2"]


def test_a_glob_that_matches_nothing_suggests():
    with pytest.raises(UnknownDataset, match="matches no dataset") as e:
        registry.match("d4rl/hoper-medium-*")
    assert "d4rl/hopper-medium-v2" in e.value.hint


def test_find():
    found = [e.id for e in homes.find("Hopper MEDIUM expert")]
    assert "d4rl/hopper-medium-expert-v2" in found
    assert all("hopper" in id and "medium" in id and "expert" in id for id in found)
    assert found == [e.id for e in rlds_cli.find("hopper medium expert")]
    assert [e.id for e in homes.find("dapg(human) pen")] == ["roboset/dapg-human/pen_v2d-v1"]
    assert {e.family for e in homes.find("hopper", family="minari")} == {"minari"}
    assert [e.id for e in homes.find("sample/c*")] == ["sample/cartpole-minari"]
    assert len(homes.find()) == sum(map(len, lines_of().values()))
    assert homes.find("no such thing") == []
    assert homes.find(local=True) == []
    with pytest.raises(UnknownDataset, match="no family"):
        homes.find(family="d5rl")


def test_words_come_before_parts_of_words():
    found = [e.id for e in homes.find("sample")]
    assert found[:3] == ["sample/cartpole-minari", "sample/mountaincar-robohive", "sample/pendulum-d4rl"]
    assert found[3:] and all("/sample" in id for id in found[3:])
    names = [e.id for e in homes.find("door")]
    whole = [bool(re.search(r"\bdoor\b", id.replace("_", " ").replace("-", " "))) for id in names]
    assert len(set(whole)) == 2
    assert sorted(whole, reverse=True) == whole


def episode(value=0.0):
    return {
        "observation": np.full((3, 2), value, np.float32),
        "action": np.zeros((2, 1), np.float32),
        "next": {"reward": np.ones(2, np.float32), "terminated": np.array([False, True])},
    }


def test_find_sees_what_is_here(tmp_path, monkeypatch):
    rlds_cli.create("local/Squeeze", [episode()])
    rlds_cli.create("local/squeeze@norm", [episode(1)])
    rlds_cli.create("sample/pendulum-d4rl@small", [episode()])
    shared = tmp_path / "shared"
    rlds_cli.create("minari/lab/x-v0", [episode()], home=shared)
    assert [e.id for e in homes.find(local=True)] == ["sample/pendulum-d4rl", "local/Squeeze"]
    monkeypatch.setenv("RLDS_PATH", str(shared))
    assert [e.id for e in homes.find(local=True)] == ["sample/pendulum-d4rl", "local/Squeeze", "minari/lab/x-v0"]
    assert [e.id for e in homes.find("squeeze")] == ["local/Squeeze"]
    assert [e.id for e in homes.find(family="local")] == ["local/Squeeze"]
    assert homes.find("lab/x")[0].format == "minari"
    assert [e.id for e in homes.find(local=True, home=tmp_path / "empty")] == ["minari/lab/x-v0"]


def test_a_search_of_this_disk_finds_what_one_of_all_finds_here():
    here = ("d4rl/hopper-medium-v2", "sample/pendulum-d4rl", "local/hopper", "minari/lab/hopper-v0")
    for id in here:
        rlds_cli.create(id, [episode()])
    for query in ("", "hopper", "pendulum d4rl", "local", "d4rl/*"):
        for family in (None, "d4rl", "local", "minari"):
            of_all = [e for e in homes.find(query, family=family) if e.id in here]
            assert homes.find(query, family=family, local=True) == of_all, (query, family)
    assert {e.id for e in homes.find("hopper", local=True)} == {*here} - {"sample/pendulum-d4rl"}


def test_references():
    assert citing.short("Farama-Foundation/D4RL#199") == "D4RL#199"
    assert citing.link("Farama-Foundation/D4RL#199") == "https://github.com/Farama-Foundation/D4RL/issues/199"
    assert citing.link("arXiv:2004.07219") == "https://arxiv.org/abs/2004.07219"
    assert citing.short("https://example.org/a/script.py") == "script.py"


# A copy of the package with a registry of its own: as installed from a wheel.


@pytest.fixture
def installed(tmp_path):
    skip = shutil.ignore_patterns("__pycache__", "samples")
    shutil.copytree(PACKAGE, tmp_path / "site" / "rlds_cli", ignore=skip)
    shutil.copytree(ROOT / "registry", tmp_path / "site" / "rlds_cli" / "_registry")
    return tmp_path / "site"


def run(site, code):
    done = subprocess.run([sys.executable, "-c", code], cwd=site, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def change(site, family, id, **changes):
    path = site / "rlds_cli" / "_registry" / f"{family}.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines = [{**line, **changes} if line["id"] == id else line for line in lines]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def test_installed_registry_lies_in_the_package(installed):
    code = """
from rlds_cli import registry
from rlds_cli.base.files.packaged import registry_directory
print(registry_directory())
print(registry.get("d4rl/pen-human-v1").id)
"""
    out = run(installed, code)
    assert out.splitlines() == [str(installed / "rlds_cli" / "_registry"), "d4rl/pen-human-v1"]


def test_closed_sources(installed):
    name = "roboset/dapg-expert/door_v2d-v1"
    change(installed, "roboset", name, status="closed", replaced_by="roboset/dapg-human/door_v2d-v1")
    code = f"""
from rlds_cli import registry as r
from rlds_cli.errors import UnknownDataset
print([(f.num_entries, f.num_closed) for f in r.families() if f.name == "roboset"])
print(len(r.match("roboset/*")), r.get("{name}").status, len(r.search("dapg-expert")))
try: r.match("roboset/dapg-expert/d*")
except UnknownDataset as e: print(e.message, e.hint)
"""
    assert run(installed, code).splitlines() == [
        "[(19, 1)]",
        "19 closed 4",
        'All 1 datasets that "roboset/dapg-expert/d*" matches are closed. '
        "roboset/dapg-human/door_v2d-v1 has taken its place",
    ]


def test_reading_the_registry_imports_nothing_heavy():
    code = """
import sys
from rlds_cli import registry
from rlds_cli import homes
homes.find("hopper"); registry.families(); registry.match("d4rl/*")
print(sorted({"numpy", "requests", "h5py", "zarr", "torch", "rich", "typer", "pandas"} & set(sys.modules)))
"""
    assert run(ROOT, code) == "[]"


# scripts/check_registry.py


def check(directory):
    """Return the code that the script exits with, and what it prints to stdout and stderr."""
    script = runpy.run_path(str(ROOT / "scripts" / "check_registry.py"))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["check_registry.py", str(directory)])
        code = script["main"]()
    return code, out.getvalue(), err.getvalue()


def test_the_registry_is_valid():
    code, out, err = check(ROOT / "registry")
    assert (code, err) == (0, "")
    counts = ", ".join(f"{name} {len(lines)}" for name, lines in lines_of().items())
    assert out == f"{counts} entries: ok\n"


PEN = "d4rl/pen-human-v1"
BROKEN = {
    "id": ({"id": "d4rl/pen (human)"}, "is not a dataset id"),
    "family": ({"id": "minari/pen-human-v1"}, "is not of the family d4rl"),
    "variant": ({"id": "d4rl/pen-human-v1@x"}, "names a variant"),
    "twice": ({"id": "d4rl/Pen-Human-v0"}, "d4rl/pen-human-v0 is both"),
    "alias": ({"aliases": ["DAPG(human)/pen_v2d-v1"]}, "is both"),
    "url": ({"urls": ["htp://x/y.hdf5"]}, "is not a well-formed URL"),
    "space": ({"urls": ["http://x.org/a b.hdf5"]}, "is not a well-formed URL"),
    "package": ({"urls": ["package:samples/none.hdf5"]}, "is not in the package"),
    "nowhere": ({"urls": None}, "exactly one of urls, tree and files"),
    "size": ({"size": -1}, "size -1 is not a positive integer"),
    "float": ({"size": 1.5}, "size 1.5 is not a positive integer"),
    "sha256": ({"sha256": "ABC"}, "is not 64 lower-case hex digits"),
    "scores": ({"ref_min_score": None}, "reference scores"),
    "order": ({"ref_min_score": 9e9}, "reference scores"),
    "rule": ({"episodes_by": "terminal"}, "is not a rule"),
    "format": ({"format": "d4rl-hdf5"}, "is not a reader of rlds"),
    "status": ({"status": "gone"}, "none of deprecated, closed"),
    "replaced": ({"status": "closed", "replaced_by": "d4rl/none"}, "is not an entry"),
    "defect": ({"defects": ["made-up"]}, "is not explained"),
    "key": ({"colour": "red"}, "not in the order of registry.ENTRY_KEYS"),
    "empty": ({"notes": ""}, "notes is empty"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", BROKEN)
def test_the_validator_finds(case, tmp_path):
    changes, message = BROKEN[case]
    broken = tmp_path / "registry"
    shutil.copytree(ROOT / "registry", broken)
    path = broken / "d4rl.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    for k, line in enumerate(lines):
        if line["id"] == PEN:
            new = {**line, **changes}
            ordered = sorted(new, key=lambda key: [*ENTRY_KEYS, key].index(key))
            lines[k] = {key: new[key] for key in ordered if new[key] is not None}
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    code, out, err = check(broken)
    assert (code, out) == (1, "")
    assert message in err


def test_the_validator_finds_disorder(tmp_path):
    broken = tmp_path / "registry"
    shutil.copytree(ROOT / "registry", broken)
    path = broken / "roboset.jsonl"
    first, second, *rest = path.read_text().splitlines()
    swapped = json.dumps(dict(reversed(json.loads(second).items())))
    path.write_text("\n".join([swapped, first, *rest, first]) + "\n")
    (broken / "extra.jsonl").write_text("")
    facts = json.loads((broken / "families.json").read_text())
    facts["d4rl"]["defects"]["swapped"]["refs"] = ["somebody said so"]
    del facts["minari"]["title"]
    (broken / "families.json").write_text(json.dumps(facts))
    code, _, err = check(broken)
    assert code == 1
    for message in (
        "roboset.jsonl is not sorted by id",
        "not in the order of registry.ENTRY_KEYS",
        f"{json.loads(first)['id']} stands twice",
        "extra: needs both",
        "'somebody said so' is not a reference",
        "minari: title is missing",
    ):
        assert message in err


def test_an_id_is_looked_up_in_the_file_of_its_family(monkeypatch):
    read = []
    lines = package.lines
    monkeypatch.setattr(package, "lines", lambda family: read.append(family) or lines(family))
    cached = (package.facts_of_families, package.entries, package.by_name, package.by_id, package.by_name_alone)
    for function in cached:
        function.cache_clear()
    assert registry.known("local/press") is None
    assert registry.listed("local/press@norm") is None
    assert read == []
    assert registry.get("D4RL/Hopper-Medium-v2@norm").id == "d4rl/hopper-medium-v2"
    assert read == ["d4rl"]
    assert registry.get("hopper-medium-v2").id == "d4rl/hopper-medium-v2"  # without its family: all are read
    assert set(read) == {family.name for family in registry.families()}
    with pytest.raises(UnknownDataset):
        registry.get("local/press")


def test_every_name_leads_to_its_entry():
    for family in registry.families():
        for entry in lookup.entries(family.name):
            assert registry.get(entry.id) is entry
    for name, entry in package.by_name().items():
        assert registry.known(name) is entry
