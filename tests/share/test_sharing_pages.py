"""The pages beside a pushed dataset: the card, the Croissant description, and the page of all datasets of a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import page_data
import pytest
from made_once import sample_dataset
from markdown_it import MarkdownIt
from test_report_page import Document

import rlds_cli
from rlds_cli.base.citing import licence_identifier
from rlds_cli.base.ids import local_name
from rlds_cli.look.report import Summary, summarise
from rlds_cli.look.report.card import card, plain, size_category
from rlds_cli.look.report.croissant import croissant
from rlds_cli.look.report.html.collection import CollectionEntry, CollectionPage
from rlds_cli.places.remote.index import StoredFile

SCRIPT = "</script><script>globalThis.hurt=1</script><img src=x onerror=globalThis.hurt=2>"
# Texts that mean something in Markdown, HTML, YAML or on the hub.
TEXTS = (
    SCRIPT,
    "| a | b |\n|---|---|",
    "---\nlicense: mit\n---",
    "```\nrm -rf\n```",
    "# a heading",
    "- an item",
    "12. an item",
    "> quoted",
    "![x](https://evil/x.png) [click](javascript:alert(1)) <https://evil>",
    "*a* _b_ `c` ~~d~~ $e$ &lt; \\",
    "\x1b[2J\u202e\u2028\ufeff\ud800\x00",
    '": [1, 2]\n  evil: true',
    "    indented code",
    "a\n===",
)
FILES = (StoredFile("rlds.json", 321, "0" * 64), StoredFile("objects/" + "ab" * 32, 5 << 20, "ab" * 32))


def rendered(text: str) -> Document:
    """A card as a renderer of Markdown shows it, without its metadata; HTML in it stays HTML."""
    body = text.split("---\n", 2)[2]
    return Document(MarkdownIt("commonmark", {"html": True}).enable("table").render(body))


def words(document: Document, *elements: str) -> str:
    return "".join(t for e in elements for t in document.texts.get(e, []))


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return summarise(sample_dataset("pendulum-d4rl"))


def described(**about: Any) -> Summary:
    """A dataset of two episodes of three and one steps, described in other words."""
    episodes = [
        {
            "observation": np.arange(2.0 * (t + 1), dtype=np.float32).reshape(-1, 2),
            "action": np.arange(t),
            "next": {"reward": np.ones(t), "terminated": t == 1, "truncated": t == 3},
            "goal": ["left"] * t,
        }
        for t in (3, 1)
    ]
    summary = summarise(rlds_cli.create("local/two", episodes, force=True))
    return replace(summary, about=replace(summary.about, **about))


# -- the card


def test_the_metadata_say_only_what_is_known(pendulum: Summary) -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(card(pendulum).split("---\n")[1])
    assert found == {
        "pretty_name": "sample/pendulum-d4rl",
        "license": "mit",
        "task_categories": ["reinforcement-learning"],
        "size_categories": ["1K<n<10K"],  # it has 5,100 steps
        "tags": ["rlds", "offline-reinforcement-learning"],
        "viewer": False,
    }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("stated", "identifier"),
    [
        ("MIT", "mit"),
        ("CC BY 4.0", "cc-by-4.0"),
        ("CC BY-NC 4.0", "cc-by-nc-4.0"),
        ("not stated", "unknown"),
        (None, "unknown"),
        ("CC BY 4.0; each dataset has its own", None),
        ("Apache-2.0 (code); not stated for the data", None),
        ("MIT\nother: x", None),
    ],
)
def test_a_licence_is_named_only_if_it_is_one(stated: str | None, identifier: str | None) -> None:
    assert licence_identifier(stated) == identifier


@pytest.mark.parametrize(
    ("n", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (999_999, "100K<n<1M"),
        (10**6, "1M<n<10M"),
        (10**12 - 1, "100B<n<1T"),
        (10**12, "n>1T"),
    ],
)
def test_the_category_of_a_size(n: int, category: str) -> None:
    assert size_category(n) == category


def test_the_card_says_how_to_load_the_dataset(pendulum: Summary) -> None:
    text = card(pendulum, address="hf://datasets/lab/pendulum")
    assert "\nrlds download hf://datasets/lab/pendulum --name local/pendulum-d4rl\n" in text
    assert pendulum.fingerprint in text
    assert 'rlds_cli.open_dataset("local/pendulum-d4rl")' in text
    assert "rlds download ADDRESS --name local/pendulum-d4rl" in card(pendulum)


def test_the_card_names_no_user_and_no_secret(pendulum: Summary) -> None:
    text = card(pendulum, address="https://me:hush@host/a/?token=hush")
    assert "hush" not in text and "https://host/a/" in text


def test_the_name_of_a_copy() -> None:
    assert local_name("local/mine@small") == "local/mine@small"
    assert local_name("minari/D4RL/door/human-v2") == "local/D4RL-door-human-v2"
    assert local_name("d4rl/hopper-medium-v2@raw") == "local/hopper-medium-v2-raw"


@pytest.mark.thorough
def test_the_tables_of_the_card_hold_the_figures() -> None:
    document = rendered(card(described()))
    assert document.wrong == []
    cells = [t for t in document.texts["td"] if t.strip()]
    # of the steps 0 to 5 and 0, 1: the mean is 16/8, the variance 56/8 - 4
    row = cells[cells.index("both") : cells.index("both") + 7]
    assert row == ["both", "float32", "2", "2", "1.732", "0", "5"]
    lengths = cells[cells.index("Length") :]
    assert lengths[:5] == ["Length", "1", "2", "2", "3"]
    assert "Ends: 1 terminated, 1 truncated, 0 cut." in words(document, "p")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("hostile", TEXTS)
def test_texts_of_strangers_stay_texts(hostile: str) -> None:
    usual = rendered(card(described(description="calm", licence="calm", author="calm", env_id="calm")))
    found = rendered(card(described(description=hostile, licence=hostile, author=hostile, env_id=hostile)))
    inner = {"p", "code"}  # a text of several lines
    assert [e for e in found.elements if e[0] not in inner] == [e for e in usual.elements if e[0] not in inner]
    assert found.wrong == []


@pytest.mark.thorough
@pytest.mark.parametrize("hostile", TEXTS)
def test_the_metadata_hold_whatever_the_name(hostile: str) -> None:
    yaml = pytest.importorskip("yaml")
    from rlds_cli.look.report.card import _quoted

    shown = yaml.safe_load(f"a: {_quoted(hostile)}\nb: 1\n")
    assert set(shown) == {"a", "b"} and isinstance(shown["a"], str)
    assert [c for c in hostile if c.isalnum()] == [c for c in shown["a"] if c.isalnum()]


def test_a_text_is_shown_as_it_was_written() -> None:
    for text in TEXTS:
        shown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(plain(text))
        document = Document(shown)
        assert {e for e, _ in document.elements} <= {"p"}
        assert [c for c in words(document, "p") if c.isascii() and c.isprintable() and c != " "] == [
            c for c in text if c.isascii() and c.isprintable() and c != " "
        ]


def test_names_of_fields_cannot_break_the_table(home: Path) -> None:
    summary = summarise(page_data.hostile())
    document = rendered(card(summary))
    assert document.wrong == []
    names = [e for e, _ in document.elements]
    assert "script" not in names and "img" not in names
    assert names.count("tr") == len(summary.fields) + 1 + 3  # with both heads, and of returns and lengths
    assert any("globalThis.hurt=1" in t for t in document.texts["code"])


def test_the_citation_and_the_licence_come_from_the_registry(pendulum: Summary) -> None:
    text = card(replace(pendulum, id="d4rl/hopper-medium-v2@small"))
    assert "@misc{fu2020d4rl" in text or "fu2020d4rl" in text


def test_the_hubs_own_client_reads_the_card(pendulum: Summary) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    found = huggingface_hub.DatasetCard(card(pendulum)).data
    assert (found.license, found.size_categories, found.task_categories) == (
        "mit", ["1K<n<10K"], ["reinforcement-learning"],
    )  # fmt: skip


# -- Croissant


def test_croissant_lists_the_files_and_the_fields() -> None:
    found = json.loads(croissant(described(author="A. Nonymous"), FILES, url="https://hub/lab/two"))
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert (found["name"], found["url"], found["creator"]["name"]) == (
        "local/two",
        "https://hub/lab/two",
        "A. Nonymous",
    )
    index, object, objects = found["distribution"]
    assert (index["contentUrl"], index["contentSize"], index["sha256"]) == ("rlds.json", "321 B", "0" * 64)
    assert (object["contentUrl"], object["contentSize"]) == (FILES[1].name, "5242880 B")
    assert object["sha256"] == "ab" * 32
    assert objects["includes"] == "objects/*"
    fields = {f["name"]: (f["dataType"], f.get("arrayShape")) for f in found["recordSet"][0]["field"]}
    assert fields == {
        "observation": ("cr:Float32", "2"),
        "action": ("cr:Int64", None),
        "next/reward": ("cr:Float64", None),
        "next/terminated": ("sc:Boolean", None),
        "next/truncated": ("sc:Boolean", None),
        "goal": ("sc:Text", None),
    }


@pytest.mark.thorough
def test_croissant_stands_in_a_page_of_html(home: Path) -> None:
    text = croissant(summarise(page_data.hostile()), FILES)
    assert "<" not in text and ">" not in text and "&" not in text
    json.loads(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its packages
def test_mlcroissant_accepts_the_description(home: Path, pendulum: Summary) -> None:
    mlcroissant = pytest.importorskip("mlcroissant")
    summaries = [pendulum, described(), summarise(page_data.pictures(episodes=2)), summarise(page_data.hostile())]
    for summary in summaries:
        dataset = mlcroissant.Dataset(jsonld=json.loads(croissant(summary, FILES)))  # raises for errors
        assert not dataset.metadata.ctx.issues.errors
        (steps,) = dataset.metadata.record_sets
        assert [f.name if isinstance(f.name, str) else f.name["en"] for f in steps.fields] == [
            "".join(c if c.isprintable() else "\ufffd" for c in f.name) for f in summary.fields
        ]
        assert [o.sha256 for o in dataset.metadata.file_objects] == [f.sha256 for f in FILES]


# -- the page of a store

HOPPER = CollectionEntry(
    "hopper", "d4rl/hopper-medium-v2", "rlds1:" + "a1b2" * 16, None, 2187, 999_906, 3 << 20, ("observation",), True
)
MINE = CollectionEntry("mine", "local/mine", "rlds1:" + "c3d4" * 16, 17, 3, 20, 1 << 20, ("a", "b"), False)


def test_the_page_of_a_store() -> None:
    page = CollectionPage([MINE, HOPPER], "s3://lab/data").render()
    document = Document(page)
    assert document.wrong == []
    assert CollectionPage.recognises(page.encode())
    rows = [t for t in document.texts["code"] if t.startswith("rlds download")]
    assert rows == [
        "rlds download s3://lab/data/hopper --name local/hopper-medium-v2",
        "rlds download s3://lab/data/mine --name local/mine",
    ]
    assert [a["href"] for a in document.all("a")] == ["./hopper/report.html"]
    cells = document.texts["td"]
    assert [c for c in cells if c[0].isdigit()] == ["2,187", "999,906", "3.0 MiB", "3", "20", "1.0 MiB"]
    assert document.texts["strong"] == ["2", "999,926", "2,190", "4.0 MiB"]
    assert "rlds1:a1b2-a1b2-a1b2" in page and " version 17" in page


def test_the_page_of_a_directory_names_no_path() -> None:
    assert "rlds download ADDRESS/mine --name local/mine" in CollectionPage([MINE]).render()


def test_a_dataset_that_cannot_be_read_is_on_the_page() -> None:
    document = Document(CollectionPage([HOPPER, CollectionEntry("bad", problem="rlds.json is not an index")]).render())
    assert "rlds.json is not an index" in document.texts["td"]
    assert document.texts["strong"][0] == "2"


@pytest.mark.parametrize("hostile", TEXTS)
def test_names_of_strangers_cannot_break_the_page(hostile: str) -> None:
    document = Document(
        CollectionPage(
            [CollectionEntry(hostile, "local/x", hostile, None, 1, 1, 1, (hostile,), True, hostile)]
        ).render()
    )
    assert document.wrong == []
    plain = Document(CollectionPage([CollectionEntry("x", "local/x", "y", None, 1, 1, 1, ("z",), True, "w")]).render())
    assert [e for e, _ in document.elements] == [e for e, _ in plain.elements]
    (link,) = document.all("a")
    assert (link["href"] or "").startswith("./") and (link["href"] or "").endswith("/report.html")


def test_the_page_runs_no_script() -> None:
    (policy,) = [
        m["content"] or "" for m in Document(CollectionPage([HOPPER]).render()).all("meta") if m.get("http-equiv")
    ]
    assert "script-src 'none'" in policy and "default-src 'none'" in policy
