"""The pages beside a pushed dataset: the card, the Croissant description, and the page of all datasets of a store."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from test_report_page import Document

import rlds_cli
from rlds_cli.report import Summary, summarise
from rlds_cli.report.card import card, plain, size_category
from rlds_cli.report.croissant import StoredFile, croissant
from rlds_cli.report.html.collection import CollectionEntry, is_catalogue, render

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
        return summarise(rlds_cli.download("sample/pendulum-d4rl"))


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


@pytest.mark.sampled(7)
@pytest.mark.parametrize("hostile", TEXTS)
def test_texts_of_strangers_stay_texts(hostile: str) -> None:
    usual = rendered(card(described(description="calm", licence="calm", author="calm", env_id="calm")))
    found = rendered(card(described(description=hostile, licence=hostile, author=hostile, env_id=hostile)))
    inner = {"p", "code"}  # a text of several lines
    assert [e for e in found.elements if e[0] not in inner] == [e for e in usual.elements if e[0] not in inner]
    assert found.wrong == []


def test_a_text_is_shown_as_it_was_written() -> None:
    for text in TEXTS:
        shown = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(plain(text))
        document = Document(shown)
        assert {e for e, _ in document.elements} <= {"p"}
        assert [c for c in words(document, "p") if c.isascii() and c.isprintable() and c != " "] == [
            c for c in text if c.isascii() and c.isprintable() and c != " "
        ]


def test_the_citation_and_the_licence_come_from_the_registry(pendulum: Summary) -> None:
    text = card(replace(pendulum, id="d4rl/hopper-medium-v2@small"))
    assert "@misc{fu2020d4rl" in text or "fu2020d4rl" in text


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


# -- the page of a store

HOPPER = CollectionEntry(
    "hopper", "d4rl/hopper-medium-v2", "rlds1:" + "a1b2" * 16, None, 2187, 999_906, 3 << 20, ("observation",), True
)
MINE = CollectionEntry("mine", "local/mine", "rlds1:" + "c3d4" * 16, 17, 3, 20, 1 << 20, ("a", "b"), False)


def test_the_page_of_a_store() -> None:
    page = render([MINE, HOPPER], address="s3://lab/data")
    document = Document(page)
    assert document.wrong == []
    assert is_catalogue(page.encode())
    rows = [t for t in document.texts["code"] if t.startswith("rlds download")]
    assert rows == [
        "rlds download s3://lab/data/hopper --as local/hopper-medium-v2",
        "rlds download s3://lab/data/mine --as local/mine",
    ]
    assert [a["href"] for a in document.all("a")] == ["./hopper/report.html"]
    cells = document.texts["td"]
    assert [c for c in cells if c[0].isdigit()] == ["2,187", "999,906", "3.0 MiB", "3", "20", "1.0 MiB"]
    assert document.texts["strong"] == ["2", "999,926", "2,190", "4.0 MiB"]
    assert "rlds1:a1b2-a1b2-a1b2" in page and " version 17" in page


def test_a_dataset_that_cannot_be_read_is_on_the_page() -> None:
    document = Document(render([HOPPER, CollectionEntry("bad", problem="rlds.json is not an index")]))
    assert "rlds.json is not an index" in document.texts["td"]
    assert document.texts["strong"][0] == "2"
