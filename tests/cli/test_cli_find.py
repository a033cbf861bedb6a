"""``rlds list`` and ``rlds info``."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
from conftest import run_rlds

import rlds_cli
from rlds_cli import cli
from rlds_cli.archives import FORMATS
from rlds_cli.cli import commands, out
from rlds_cli.look.report import catalogue

ROOT = Path(__file__).parents[2]
HEAVY = {
    "numpy",
    "jinja2",
    "requests",
    "h5py",
    "zarr",
    "torch",
    "tensordict",
    "PIL",
    "pyarrow",
    "gymnasium",
    "rich.console",
}

LINES = {p.stem: p.read_text().splitlines() for p in (ROOT / "registry").glob("*.jsonl")}
COUNTS = {name: len(lines) for name, lines in LINES.items()}
CLOSED = "atari_dqn"
OFFERED = [count for name, count in COUNTS.items() if name not in ("sample", CLOSED)]
TOTAL = f"{sum(OFFERED):,} datasets of {len(OFFERED)} families can be downloaded, {COUNTS[CLOSED]} no longer"


@pytest.fixture
def rlds(monkeypatch, capsys):
    """Run ``rlds ARGS`` as its entry point does: (exit code, stdout, stderr)."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["rlds", *map(str, args)])
        try:
            cli.main()
            code = 0
        except SystemExit as e:
            code = e.code or 0
        return code, *capsys.readouterr()

    return run


def episode(steps=3):
    return {
        "observation": np.zeros((steps + 1, 2), np.float32),
        "action": np.zeros((steps, 1), np.float32),
        "next": {"reward": np.ones(steps, np.float32), "terminated": np.arange(steps) == steps - 1},
    }


# rlds list


def test_families(rlds, home):
    code, out, err = rlds("list")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["FAMILY", "DATASETS", "HERE", "ON", "DISK"]
    for row in (["d4rl", "183", "-", "-"], ["minari", "392+", "-", "-"], ["roboset", "20", "-", "-"]):
        assert row in [line.split()[:4] for line in lines[1:-1]]
    assert [line.split()[0] for line in lines[1:-1]] == sorted(COUNTS)
    assert lines[-1] == f"{TOTAL}; nothing here yet"
    assert not home.exists()


def test_families_count_what_is_here(rlds, home, tmp_path, monkeypatch):
    rlds_cli.create("local/press", [episode()])
    rlds_cli.create("local/press@norm", [episode()])
    rlds_cli.create("d4rl/pen-human-v1", [episode()], home=tmp_path / "shared")
    monkeypatch.setenv("RLDS_PATH", str(tmp_path / "shared"))
    monkeypatch.setenv("HOME", str(tmp_path))
    out = rlds("list")[1].splitlines()
    assert ["d4rl", "183", "1"] in [line.split()[:3] for line in out]
    local = next(line for line in out if line.startswith("local "))
    assert local.split()[:3] == ["local", "-", "1"]
    assert local.endswith("imported or made here")
    assert f"{TOTAL}; 1 here, " in out[-1]
    assert " in ~/home; 1 here, " in out[-1]
    found = json.loads(rlds("list", "--json")[1])
    assert {f["family"]: f["here"] for f in found["families"]} == dict.fromkeys(COUNTS, 0) | {"d4rl": 1, "local": 1}
    on_disk = sum(p.stat().st_blocks * 512 for p in (home / "datasets").rglob("*") if p.is_file())
    assert {f["family"]: f["bytes_on_disk"] for f in found["families"]}["local"] == on_disk
    assert [h["path"] for h in found["homes"]] == [str(home), str(tmp_path / "shared")]


def test_a_shared_file_counts_once(home):
    rlds_cli.create("local/a", [episode()])
    before = catalogue.overview().families[-1].bytes_on_disk
    source = home / "datasets" / "local" / "a"
    os.chmod(source.parent, 0o755)  # noqa: PTH101
    shutil.copytree(source, source.with_name("b"), copy_function=os.link)
    after = catalogue.overview().families[-1]
    assert (after.here, after.bytes_on_disk) == (2, before)


def test_rows_align(rlds):
    lines = rlds("list", "--family", "sample")[1].splitlines()
    assert len({line.index("known") + len("known") for line in lines[1:]}) == 1
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.thorough
def test_rows_say_what_is_here(rlds):
    rlds_cli.create("d4rl/pen-human-v1", [episode()])
    rlds_cli.create("d4rl/pen-human-v1@norm", [episode()])
    rlds_cli.create("d4rl/pen-human-v0@raw", [episode()])
    rlds_cli.create("local/press", [episode()])
    rows = {line.split()[0]: line.split()[4:] for line in rlds("list", "pen-human")[1].splitlines()}
    assert rows["d4rl/pen-human-v1"] == ["yes,", "@norm"]
    assert rows["d4rl/pen-human-v0"][0] == "@raw"
    here = [r["id"] for r in json.loads(rlds("list", "--local", "--json")[1])]
    assert here == ["d4rl/pen-human-v0", "d4rl/pen-human-v1", "local/press"]
    assert [line.split()[0] for line in rlds("list", "-f", "local")[1].splitlines()] == ["ID", "local/press"]


@pytest.mark.thorough
def test_what_is_here_with_its_size(rlds, home):
    rlds_cli.create("d4rl/pen-human-v1", [episode(1200), episode(300)])
    rlds_cli.create("d4rl/pen-human-v1@norm", [episode()])
    rlds_cli.create("local/press", [episode()])
    (home / "datasets/local/press/zarr.json").chmod(0o644)
    (home / "datasets/local/press/zarr.json").write_text("{")
    lines = [line.split() for line in rlds("list", "--local")[1].splitlines()]
    assert lines[0] == ["ID", "STEPS", "EPISODES", "DISK"]
    assert [line[:3] for line in lines[1:]] == [
        ["d4rl/pen-human-v1", "1,500", "2"],
        ["d4rl/pen-human-v1@norm", "3", "1"],
        ["local/press", "?", "?"],
    ]
    found = json.loads(rlds("list", "--local", "pen", "--json")[1])[0]["contents"][0]
    blocks = sum(p.stat().st_blocks for p in (home / "datasets/d4rl/pen-human-v1").rglob("*") if p.is_file())
    assert (found["id"], found["steps"], found["episodes"]) == ("d4rl/pen-human-v1", 1500, 2)
    assert found["bytes_on_disk"] == 512 * blocks
    assert rlds("list", "--local", "nothing")[1] == ""


def test_one_family(rlds):
    assert len(rlds("list", "--family", "d4rl")[1].splitlines()) == 184
    assert len(rlds("list", "--family", "MINARI", "/hopper/")[1].splitlines()) == 4
    code, out, err = rlds("list", "--family", "minri")
    assert (code, out) == (1, "")
    assert err.startswith('UnknownDataset: There is no family "minri".\n  hint: minari?')


@pytest.mark.thorough
def test_all_is_every_dataset(rlds):
    assert len(rlds("list", "--all")[1].splitlines()) == 1 + sum(map(len, LINES.values()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["zzzz"], 'nothing matches "zzzz"; rlds list shows families'),
        (["hoper-medium"], "did you mean d4rl/hopper-medium-v2"),
        (["--local"], "nothing here; omit --local to list datasets to download"),
        (["--local", "hopper"], 'nothing here matches "hopper"'),
        (["--family", "local"], "nothing matches in local"),
    ],
)
def test_nothing_found_is_said_on_stderr(rlds, args, said):
    code, out, err = rlds("list", *args)
    assert (code, out) == (0, "")
    assert said in err
    assert json.loads(rlds("list", *args, "--json")[1]) == []


def test_queries_that_are_no_words(rlds):
    assert rlds("list", "[", "(")[0] == 0
    assert rlds("list", "DAPG(human)")[1].count("\n") == 5
    assert rlds("list", "sample/*")[1].count("\n") == 4
    assert rlds("list", "")[1].startswith("ID")


def test_closed_sources_are_hidden_unless_asked_for(tmp_path):
    site = tmp_path / "site"
    shutil.copytree(ROOT / "rlds_cli", site / "rlds_cli", ignore=shutil.ignore_patterns("__pycache__", "samples"))
    shutil.copytree(ROOT / "registry", site / "rlds_cli" / "_registry")
    path = site / "rlds_cli" / "_registry" / "roboset.jsonl"
    first, *rest = path.read_text().splitlines()
    closed = {**json.loads(first), "status": "closed", "notes": "the bucket answers 403"}
    path.write_text("\n".join([json.dumps(closed), *rest]) + "\n")
    commands = ["list", "list -f roboset", "list -f roboset --all", f"info {closed['id']}"]
    code = f"""
import sys
from rlds_cli.cli import main
for command in {commands!r}:
    sys.argv = ["rlds", *command.split()]
    try:
        main()
    except SystemExit as e:
        assert not e.code
    print(end="\\0")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=site, capture_output=True, text=True, check=True)
    families, few, every, card, _ = (text.splitlines() for text in done.stdout.split("\0"))
    assert any("RoboHive simulated manipulation: DAPG hand, FK1 kitchen (1 of a closed source)" in x for x in families)
    assert len(few) == 20
    assert len(every) == 21
    assert every[1].endswith("closed")
    assert card[0].endswith("not here; the source is closed")
    assert card[-1].split(None, 1) == ["notes", "the bucket answers 403"]


# rlds info


def test_a_card(rlds):
    code, out, err = rlds("info", "d4rl/antmaze-large-play-v2")
    lines = {line[:10].strip(): line[10:] for line in out.splitlines()[1:]}
    assert (code, err) == (0, "")
    # 230,880,653 bytes
    assert out.startswith("d4rl/antmaze-large-play-v2   not here; 220.2 MiB to download, about 286.2 MiB of cache\n")
    assert lines["source"] == "rail.eecs.berkeley.edu (plain HTTP; sha256 6d353df2… known), 1 mirror"
    assert lines["licence"] == "CC BY 4.0   paper arXiv:2004.07219   --cite for BibTeX"
    assert lines["task"] == "antmaze-large-play-v2, 1,000 steps; score 0 = 0.0, 1 = 1.0"
    assert lines["episodes"].startswith("end at timeouts")
    assert "(D4RL#199, HIQL#2)" in lines["defects"]


@pytest.mark.thorough
def test_a_card_by_alias_and_in_any_case(rlds):
    assert rlds("info", "DAPG(expert)/door_v2d-v1")[1].startswith("roboset/dapg-expert/door_v2d-v1   not here")
    assert rlds("info", "D4RL/Pen-Human-V1")[1].startswith("d4rl/pen-human-v1   not here")


def test_a_card_says_what_is_deprecated_and_what_to_use(rlds):
    assert "status    deprecated: use d4rl/hopper-medium-v2\n" in rlds("info", "d4rl/hopper-medium-v0")[1]
    assert "status" not in rlds("info", "d4rl/hopper-medium-v2")[1]


def test_a_card_of_a_dataset_that_has_no_entry_but_a_hub(rlds):
    out = rlds("info", "minari/lab/reach-v0")[1]
    assert "datasets/farama-minari/lab/reach-v0/data on the hub" in out
    assert "its size is unknown before the download" in out


def test_a_card_of_several_files(rlds):
    assert "this package (2 files; sha256 known)" in rlds("info", "sample/cartpole-minari")[1]


def test_a_card_of_ones_own_data(rlds, home, tmp_path):
    rlds_cli.create("local/press", [episode()])
    for ref in ("local/press", "local/PRESS", home / "datasets" / "local" / "press"):
        code, out, _ = rlds("info", ref)
        assert code == 0
        assert "steps     3, of them 3 transitions" in out
    assert json.loads(rlds("info", "local/press", "--json")[1])["entry"] is None
    assert rlds("info", "local/press", "--defects")[1] == "no defects of local/press are known\n"
    assert json.loads(rlds("info", "local/press", "--defects", "--json")[1]) == []


def test_a_variant_has_a_card_of_its_own(rlds):
    rlds_cli.create("d4rl/pen-human-v1@norm", [episode(5)])
    assert "steps     5, of them 5 transitions" in rlds("info", "d4rl/pen-human-v1@norm")[1]
    code, out, err = rlds("info", "d4rl/pen-human-v1@other")
    assert (code, out) == (1, "")
    assert err.startswith("DatasetNotFound: d4rl/pen-human-v1@other is not in ")


def test_the_card_of_a_variant_does_not_say_the_content_of_another(rlds):
    rlds_cli.create("sample/pendulum-d4rl@five", [episode(5)])
    out = rlds("info", "sample/pendulum-d4rl@five")[1]
    assert "\narchive   sample/pendulum-d4rl: 5,100 steps, 26 episodes" in out and "\ncontent" not in out
    assert "\ncontent   5,100 steps, 26 episodes" in rlds("info", "sample/pendulum-d4rl")[1]


def test_fingerprint(rlds):
    ds = rlds_cli.create("local/press", [episode()])
    assert rlds("info", "local/press", "--fingerprint")[1] == f"{ds.fingerprint}\n"
    found = json.loads(rlds("info", "local/press", "--fingerprint", "--json")[1])
    assert found == {"id": "local/press", "fingerprint": ds.fingerprint}
    code, out, err = rlds("info", "d4rl/pen-human-v1", "--fingerprint")
    assert (code, out) == (1, "")
    assert err.startswith("DatasetNotFound") and "rlds download d4rl/pen-human-v1" in err


def test_cite(rlds):
    code, out, _ = rlds("info", "d4rl/hopper-medium-v2", "--cite")
    assert code == 0
    assert out.startswith("@misc{fu2020d4rl,\n") and out.endswith("}\n")
    assert json.loads(rlds("info", "d4rl/pen-human-v1", "--cite", "--json")[1])["citation"] == out.rstrip("\n")
    rlds_cli.create("local/press", [episode()])
    code, out, err = rlds("info", "local/press", "--cite")
    assert (code, out) == (1, "")
    assert "No citation is known for local/press" in err


def test_cite_names_the_content_of_what_is_here(rlds):
    before = rlds("info", "d4rl/pen-human-v1", "--cite")[1]
    ds = rlds_cli.create("d4rl/pen-human-v1", [episode()])
    after = rlds("info", "d4rl/pen-human-v1", "--cite")[1]
    note = f"  note = {{dataset d4rl/pen-human-v1, content {ds.fingerprint}}}\n"
    assert after == before.removesuffix("\n}\n") + ",\n" + note + "}\n"


def test_defects(rlds):
    out = rlds("info", "d4rl/maze2d-umaze-v1", "--defects")[1].splitlines()
    assert out[0].startswith("goal-switches: timeouts mark goal switches")
    assert out[1] == "  https://github.com/Farama-Foundation/D4RL/issues/85"
    found = json.loads(rlds("info", "d4rl/maze2d-umaze-v1", "--defects", "--json")[1])
    assert [d["code"] for d in found] == ["goal-switches", "early-reward", "stale-observation", "zero-rows"]
    assert found[1]["refs"] == ["Farama-Foundation/D4RL#194", "Farama-Foundation/D4RL#158"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("d4rl/hoper-medium-v2", "did you mean d4rl/hopper-medium-v2"),
        ("d4rl", "that is a family"),
        ("local/pres", "did you mean local/press"),
        ("../../etc", "does not exist"),
        ("/nowhere", "does not exist"),
        ("", "rlds list"),
        ("d4rl/pen-human-v1@../x", "ids are family/name"),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--cite"], ["--defects"], ["--fingerprint"], ["--json"]])
def test_unknown(rlds, ref, hint, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where ../../etc is not that of the system
    rlds_cli.create("local/press", [episode()])
    code, out, err = rlds("info", ref, *flags)
    if flags == ["--json"]:
        answer = json.loads(out)
        assert (code, err) == (1, "") and hint in f"{answer['error']} {answer['hint']}"
    else:
        assert (code, out) == (1, "")
        assert hint in err


def test_errors_are_records_where_the_answer_is_one(rlds):
    code, out, err = rlds("info", "d4rl/nothing", "--json")
    assert (code, err) == (1, "") and json.loads(out)["kind"] == "UnknownDataset"
    code, out, err = rlds("info", "--json", "--nothing")
    assert (code, err) == (2, "") and json.loads(out) == {
        "error": "No such option: --nothing",
        "kind": "UsageError",
        "hint": "rlds info -h",
    }


def test_words_that_people_type_name_the_command(rlds):
    for word, command in {
        "delete": "rlds rm",
        "show": "rlds view",
        "search": "rlds list",
        "upload": "rlds push",
    }.items():
        code, out, err = rlds(word, "local/x")
        assert (code, out) == (1, "") and f"There is no rlds {word}" in err and command in err
    words = {part for hint in commands.INSTEAD.values() for part in re.findall(r"rlds ([a-z]+)", hint)}
    assert words <= set(cli.COMMANDS) and not set(commands.INSTEAD) & set(cli.COMMANDS)


def test_an_export_without_a_format_lists_them(rlds):
    code, out, err = rlds("export", "local/x", "there")
    assert (code, out) == (2, "") and all(name in err for name in FORMATS)


def test_help_by_a_word(rlds):
    assert rlds("help", "info") == rlds("info", "--help")
    assert rlds("help") == rlds("--help")
    assert rlds("help", "delete")[0] == 1
    assert rlds("-V") == rlds("--version")


def test_colour_on_a_terminal_alone(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\033[1mUsage:\033[0m " in terminal(80, "info", "--help")
    assert "\033[36m--cite" in terminal(80, "info", "--help")
    assert "\033[1;31mUnknownDataset:\033[0m" in terminal(80, "info", "d4rl/nothing", code=1)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in terminal(80, "info", "--help") + terminal(80, "info", "d4rl/nothing", code=1)


def test_usage(rlds):
    assert rlds("info")[0] == 2
    code, out, err = rlds("info", "d4rl/pen-human-v1", "--cite", "--defects")
    assert (code, out) == (2, "")
    assert "only one of --cite, --defects and --fingerprint" in err
    for command in ("list", "info"):
        code, out, _ = rlds(command, "--help")
        assert code == 0 and "Example: rlds" in out


# where it prints, and what it imports


def terminal(columns, *args, code=0):
    """What ``rlds ARGS`` prints on a terminal of so many columns, and exits with ``code``."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-c", "from rlds_cli.cli import main; main()", *args]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.STDOUT, cwd=ROOT, env=env) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            text += part
        assert process.wait() == code, text
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def test_narrow_terminals():
    lines = terminal(60, "list").splitlines()
    assert max(map(len, lines[:5])) <= 60
    assert lines[1].endswith("…")
    card = terminal(60, "info", "d4rl/antmaze-large-play-v2").splitlines()
    assert max(map(len, card[1:])) <= 60
    assert "\x1b" not in "".join(lines + card)
    ids = [line.split()[0] for line in terminal(30, "list", "antmaze-large").splitlines()]
    assert "d4rl/antmaze-large-diverse-v2" in ids


@pytest.mark.thorough
def test_a_pipe_gets_everything(rlds):
    assert "…" not in rlds("list")[1]
    assert "…" not in rlds("list", "minari")[1]


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -c 'from rlds_cli.cli import main; main()' list --all | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ID ")
    assert done.stderr == ""


def test_nothing_heavy_is_imported():
    """In one process: what a command imports stays, and is seen after it."""
    rlds_cli.create("local/press", [episode()])
    commands = [
        "list",
        "list hopper medium",
        "list --local",
        "info d4rl/hopper-medium-v2",
        "info local/press",
        "info local/press --fingerprint",
        "info local/press --json",
        "list --json",
    ]
    code = (
        f"import sys; from rlds_cli.cli import main\nfor line in {commands}:\n    sys.argv = ['rlds', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit as e:\n        assert not e.code\n"
        f"    assert not {HEAVY} & set(sys.modules), line\nprint('light')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("light\n")


def test_ids_are_completed_in_the_shell() -> None:
    from rlds_cli.cli.options import complete_here, complete_id

    completed = complete_id("d4rl/hopper-m")
    assert "d4rl/hopper-medium-v2" in completed
    assert all(i.startswith("d4rl/hopper-m") for i in completed)
    assert complete_id("no/such") == []
    assert complete_here("") == []
    rlds_cli.create("local/press", [episode()])
    rlds_cli.create("local/press@norm", [episode()])
    rlds_cli.create("d4rl/pen-human-v1", [episode()])
    assert complete_here("") == ["d4rl/pen-human-v1", "local/press", "local/press@norm"]
    assert complete_here("LOCAL/p") == ["local/press", "local/press@norm"]


def test_commands_on_what_is_here_complete_that() -> None:
    from typer.main import get_command

    from rlds_cli.cli.options import complete_here

    commands = get_command(cli.app).commands
    rlds_cli.create("local/press", [episode()])
    for name in ("rm", "path", "diff", "check", "inspect", "verify", "convert", "lock", "bench", "preprocess"):
        first = next(p for p in commands[name].params if p.param_type_name == "argument")
        context = commands[name].make_context("rlds", [], resilient_parsing=True)
        assert [c.value for c in first.shell_complete(context, "")] == complete_here("") == ["local/press"]


def test_without_a_command_the_first_steps_are_shown_and_a_sample_is_at_hand() -> None:
    steps = run_rlds()
    assert steps.returncode == 0 and b"rlds download sample/pendulum-d4rl" in steps.stdout
    shown = run_rlds("inspect", "sample/pendulum-d4rl")
    assert shown.returncode == 0 and b"26 episodes" in shown.stdout
    assert run_rlds("inspect", "sample/nothing").returncode == 1


def test_the_list_of_commands_has_the_first_sentence_of_their_help() -> None:
    from typer.main import get_command

    commands = get_command(cli.app).commands
    assert list(commands) == list(cli.COMMANDS)
    for name, sentence in cli.COMMANDS.items():
        assert commands[name].help.startswith(sentence)
        assert commands[name].help[len(sentence) :][:1] in ("", " ", "\n")


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_help_fits_two_screens_of_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(cli.app, [name, "--help"]).output.splitlines()
    grouped = "Output:" in lines
    assert 5 < len(lines) <= (80 if grouped else 60) and max(map(len, lines)) <= 80


def test_the_list_of_commands_is_not_cut() -> None:
    assert all(len(f"  {name:10}  {sentence}") <= 80 for name, sentence in cli.COMMANDS.items())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_a_listing(unbuffered: str) -> None:
    command = f"{sys.executable} -c 'from rlds_cli.cli import main; main()' list > /dev/full"
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=env)
    assert run.returncode == 1
    assert run.stderr == "NoSpace: The disk is full: the output could not be written.\n"


def test_rows_of_a_query(rlds):
    code, out, _ = rlds("list", "hopper", "medium")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0
    assert rows["ID"] == ["SIZE", "SHA256", "HERE", "NOTE"]
    assert rows["d4rl/hopper-medium-v2"] == ["145.7", "MiB", "known", "-"]
    assert rows["minari/mujoco/hopper/medium-v0"] == ["?", "-", "-"]
    assert rows["d4rl/hopper-medium-v0"][-3:] == ["deprecated,", "see", "d4rl/hopper-medium-v2"]
    assert all("hopper" in id and "medium" in id for id in rows if id != "ID")


def test_a_card_of_what_is_here(rlds, home):
    ds = rlds_cli.create("d4rl/pen-human-v1", [episode(3), {**episode(4), "next": {"reward": np.ones(4, np.float32)}}])
    rlds_cli.create("d4rl/pen-human-v1@norm", [episode()])
    out = rlds("info", "d4rl/pen-human-v1")[1]
    lines = {line[:10].strip(): line[10:] for line in out.splitlines()[1:]}
    digest = ds.fingerprint.removeprefix("rlds1:")
    assert "   here: " in out.splitlines()[0]
    assert out.splitlines()[0].endswith(f"memmap   rlds1:{digest[:4]}-{digest[4:8]}-{digest[8:12]}")
    assert lines["path"] == str(home / "datasets" / "d4rl" / "pen-human-v1")
    assert lines["steps"] == "7, of them 7 transitions"
    assert lines["episodes"].startswith("2: 1 terminated, 0 truncated, 1 cut")
    assert lines["variants"] == "d4rl/pen-human-v1@norm"
    assert "task" in lines and "licence" in lines
    found = json.loads(rlds("info", "d4rl/pen-human-v1", "--json")[1])
    assert found["entry"]["size"] == 2040573
    assert found["here"]["manifest"]["counts"]["steps"] == 7
    assert found["variants"] == ["d4rl/pen-human-v1@norm"]


def test_a_damaged_dataset_still_has_a_card(rlds, home):
    rlds_cli.create("d4rl/pen-human-v1", [episode()])
    manifest = home / "datasets" / "d4rl" / "pen-human-v1" / "zarr.json"
    manifest.chmod(0o644)
    manifest.write_text('{"attributes": {}}')
    code, out, _ = rlds("info", "d4rl/pen-human-v1")
    assert code == 0
    assert "here, but damaged" in out.splitlines()[0] and "licence" in out
    code, _, err = rlds("info", "d4rl/pen-human-v1", "--fingerprint")
    assert code == 1 and err.startswith("DamagedDataset")
    assert rlds("list", "pen-human-v1")[0] == 0


def test_notes_say_how_often_once(rlds):
    """Findings name what they counted; what readers note does not."""
    said = rlds("download", "sample/mountaincar-robohive")[2]
    assert "info/rwd_sparse, info/solved never change\n" in said
    assert out.note_line({"text": "flags were dropped", "count": 3, "where": "row 7"}) == (
        "flags were dropped (3 times), e.g. row 7"
    )
