"""The report as a document: what it holds, that no dataset can break it, how big it gets, how it is written."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import io
import json
import os
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import page_data
import pytest
from conftest import run_rlds
from frames_data import decoded, film
from made_once import sample_dataset
from PIL import Image

import rlds_cli
from rlds_cli.errors import DamagedDataset, NameTaken, RldsError
from rlds_cli.look.report.html import write_page

SCRIPT = Path(rlds_cli.__file__).parent / "look" / "report" / "templates" / "report.js"
SAMPLES = ("sample/cartpole-minari", "sample/mountaincar-robohive", "sample/pendulum-d4rl")
VOID = {"img", "input", "meta", "link", "br", "hr"}
MIB = 1 << 20


class Document(html.parser.HTMLParser):
    """A page, parsed: elements with their attributes, text by element, and what is wrong with the nesting."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        self.wrong += [f"<{name}> is not closed" for name in self.open]

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        if not self.open or self.open.pop() != name:
            self.wrong.append(f"</{name}> closes something else")

    def handle_data(self, text: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(text)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == name]

    @property
    def data(self) -> Any:
        return json.loads(self.texts["script"][0])


def page_of(ds: rlds_cli.Dataset | str) -> str:
    stream = io.BytesIO()
    write_page(ds, stream)
    return stream.getvalue().decode()


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(";base64,")[2]))))


def lists(episodes: list[int], *, seed: int = 0, **fields: Any) -> rlds_cli.Dataset:
    """Episodes of so many steps with two observations, the second often at its greatest value; more by function."""
    rng = np.random.default_rng(seed)
    return rlds_cli.create(
        "local/lists",
        (
            {
                "observation": np.stack([rng.normal(size=t + 1), rng.integers(0, 5, t + 1)], 1),
                "action": rng.integers(0, 4, t),
                "next": {"reward": rng.normal(size=t), "terminated": k % 3 == 0, "truncated": k % 3 == 1},
                **{name: make(k, t) for name, make in fields.items()},
            }
            for k, t in enumerate(episodes)
        ),
        force=True,
    )


# -- the document


@pytest.fixture(
    scope="module",
    params=[SAMPLES[0], "hostile", "pictures", *(pytest.param(s, marks=pytest.mark.thorough) for s in SAMPLES[1:])],
)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        special = {"pictures": lambda: page_data.pictures(episodes=4), "hostile": page_data.hostile}
        return page_of(special.get(request.param, lambda: rlds_cli.download(request.param))())


@pytest.mark.sampled(2)
def test_elements_are_closed_and_ids_are_unique(page: str) -> None:
    document = Document(page)
    assert document.wrong == []
    ids = [a["id"] for _, a in document.elements if "id" in a]
    assert [i for i, n in Counter(ids).items() if n > 1] == []


def test_links_and_labels_lead_somewhere(page: str) -> None:
    document = Document(page)
    ids = {a["id"] for _, a in document.elements if "id" in a}
    viewed = {e["number"] for e in document.data["episodes"]}
    for a in document.all("a"):
        address = a["href"] or ""
        place = re.fullmatch(r"#episode-(\d+)(-step-\d+)?", address)
        assert address.startswith("https://") or (int(place[1]) in viewed if place else address[1:] in ids)
    assert {a["for"] for a in document.all("output")} <= ids


def test_the_script_finds_the_elements_and_charts_that_it_asks_for(page: str) -> None:
    document = Document(page)
    ids = {a["id"] for _, a in document.elements if "id" in a}
    asked = set(re.findall(r'byId\("([\w-]+)"\)', SCRIPT.read_text()))
    assert asked and asked <= ids
    assert {a["data-chart"] for a in document.all("svg")} == document.data["charts"].keys()


def test_it_can_be_read_without_seeing_it(page: str) -> None:
    document = Document(page)
    levels = [int(name[1]) for name, _ in document.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert document.all("html")[0]["lang"] == "en"
    assert len(document.all("main")) == 1
    assert document.all("a")[0]["href"] == "#content"  # the way past the head
    assert all(a.get("role") == "img" for a in document.all("svg"))
    assert all("scope" in a for a in document.all("th"))
    assert len(document.all("caption")) == len(document.all("table")) == 2
    sortable = [a["aria-sort"] for a in document.all("th") if "aria-sort" in a]
    assert sortable.count("ascending") == 1 and set(sortable) == {"ascending", "none"}
    assert all(a.get("tabindex") == "0" and a["aria-label"] for a in document.all("div") if a.get("role") == "region")


@pytest.mark.filterwarnings("error")
def test_complex_numbers_have_no_curve_of_their_real_parts(home: Path) -> None:
    wave = {"observation": np.full((3, 1), 1 + 5j), "action": np.arange(2.0)}
    page = page_of(rlds_cli.create("local/waves", [wave]))
    assert [c["name"] for c in Document(page).data["fields"]] == ["action"] and "no observation" in page


def test_nothing_is_fetched_and_only_its_own_script_runs(page: str) -> None:
    document = Document(page)
    for name, attributes in document.elements:
        assert "style" not in attributes and not [a for a in attributes if a.startswith("on")]
        assert "src" not in attributes or name == "img"
    assert not document.all("iframe") and not document.all("object") and not document.all("base")
    (policy,) = (a["content"] or "" for a in document.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'; ")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(document.texts[name][-1].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "url(" not in document.texts["style"][0] and "@import" not in document.texts["style"][0]


def test_the_script_makes_no_html() -> None:
    text = SCRIPT.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|fetch\(|http", text)
    assert "</" not in text and "<!--" not in text


# -- hostile names


def test_what_would_be_html_is_text() -> None:
    page = page_of(page_data.hostile())
    document = Document(page)
    assert len(document.all("script")) == 2 and page.count("</script") == 2
    assert not document.all("img") and "<img" not in page
    assert "\x00" not in page and "\x1b" not in page
    shown = "".join(document.texts["code"] + document.texts["dd"])
    assert page_data.HOSTILE in shown  # the environment; the fields have another slash
    (texts,) = document.data["episodes"][0]["texts"].values()
    assert texts[:3] == [[0, page_data.HOSTILE], [1, "\u2028\u2029\u202e\x00\x1b"], [2, page_data.HOSTILE]]


# -- what it says


def test_histograms_are_those_of_the_steps() -> None:
    ds = lists([7, 1, 30])
    document = Document(page_of(ds))
    charts = document.data["charts"]
    steps = np.concatenate([ds.episode(k)["observation"] for k in range(3)])
    low, high = steps[:, 0].min(), steps[:, 0].max()
    expected = [0] * 32
    for x in steps[:, 0]:
        expected[min(31, int((x - low) / (high - low) * 32))] += 1
    first = charts["0-0"]
    assert (first["counts"], first["low"], first["high"]) == (expected, low, high)
    assert first["mean"] == pytest.approx(steps[:, 0].mean())
    action = np.concatenate([ds.episode(k)["action"] for k in range(3)])
    assert charts["1-0"]["counts"] == [(action == a).sum() for a in range(action.min(), action.max() + 1)]
    assert charts["ends"]["parts"] == [1, 1, 1]
    lengths, returns = zip(*[(x, y) for x, y, _ in charts["dots"]["points"]], strict=True)
    assert lengths == (7, 1, 30) and returns == pytest.approx(ds.episodes["total_reward"].tolist())
    assert sum(charts["returns"]["counts"]) == sum(charts["lengths"]["counts"]) == 3


def test_long_tails_and_values_that_are_not_finite_are_counted_apart() -> None:
    values = np.concatenate([np.linspace(0, 1, 997), [1e6, np.nan, np.inf]])
    document = Document(page_of(lists([1000], extra=lambda k, t: values)))
    (one,) = (c for c in document.data["charts"].values() if sum(c.get("counts", ())) == 997)
    assert one["high"] < 2
    assert "1 beyond the bars, from 0 to 1e+06, 2 not finite" in document.texts["p"]


def test_many_steps_are_sampled_and_it_says_so() -> None:
    document = Document(page_of(lists([40_000, 40_000])))
    (steps,) = {
        int(n.replace(",", "")) for t in document.texts["span"] for n in re.findall("([\\d,]+) steps sampled", t)
    }
    assert 60_000 < steps <= 65_536
    assert sum(document.data["charts"]["1-0"]["counts"]) == steps


def test_the_table_has_every_episode() -> None:
    ds = lists([3, 9, 2, 5], instruction=lambda k, t: ["go"] * t)
    columns = Document(page_of(ds)).data["columns"]
    assert columns["number"] == [0, 1, 2, 3] and columns["length"] == [3, 9, 2, 5]
    assert columns["end"] == [0, 1, 2, 0]  # terminated, truncated, cut
    assert columns["total"] == pytest.approx(ds.episodes["total_reward"].tolist(), rel=1e-6)


def test_curves_are_the_values_of_their_steps() -> None:
    ds = lists([6, 4])
    data = Document(page_of(ds)).data
    names = [f["name"] for f in data["fields"]]
    assert names == ["observation", "action", "next/reward"]
    one = data["episodes"][1]
    assert one["steps"] == 5 and one["number"] == 1
    values = [np.frombuffer(base64.b64decode(v), "<f4").reshape(-1, 5) for v in one["values"]]
    start = int(ds.episodes["start"][1])
    assert np.array_equal(values[0], ds.column("observation")[start : start + 5].T.astype("<f4"))
    assert np.array_equal(values[1][0, :4], ds.column("action")[start : start + 4]) and np.isnan(values[1][0, 4])
    assert np.array_equal(values[2][0, :4], ds.column("next/reward")[start : start + 4].astype("<f4"))


def test_long_episodes_keep_first_last_and_the_steps_of_findings() -> None:
    bad = 1234
    rewards = np.zeros(5000)
    rewards[bad] = np.nan
    ds = lists([5000], extra=lambda k, t: rewards)
    one = Document(page_of(ds)).data["episodes"][0]
    assert {0, bad, 5000} <= set(one["steps"]) and len(one["steps"]) <= 1201
    page = page_of(ds)
    assert f'href="#episode-0-step-{bad}"' in page and "evenly spaced steps" in page


def test_film_strips_are_frames_of_their_steps() -> None:
    frames = Document(page_of(film([5, 3]))).data["episodes"][1]["frames"]["observation"]
    assert [frame[0] for frame in frames] == [0, 1, 2, 3]
    for step, uri, width, height in frames:
        assert uri.startswith("data:image/png;") and (height, width) == (16, 12)
        assert np.array_equal(pixels(uri), decoded(1, step))


def test_a_broken_frame_is_left_out() -> None:
    frames = Document(page_of(film([5], broken=(0, 2)))).data["episodes"][0]["frames"]["observation"]
    assert [frame[0] for frame in frames] == [0, 1, 3, 4, 5]


def test_of_a_stack_of_grey_frames_the_last_is_shown() -> None:
    stack = np.random.default_rng(0).integers(0, 256, (2, 4, 20, 24), np.uint8)
    ds = rlds_cli.create("local/stack", [{"observation": stack, "action": np.zeros(1)}])
    (first, _) = Document(page_of(ds)).data["episodes"][0]["frames"]["observation"]
    assert np.array_equal(pixels(first[1]), stack[0, 3])


def test_the_viewer_has_the_episodes_worth_a_look() -> None:
    lengths = [5] * 100
    lengths[41], lengths[67] = 9, 1
    ds = lists(lengths, extra=lambda k, t: np.full(t, np.nan if k == 83 else float(k)))
    why = {e["number"]: e["why"] for e in Document(page_of(ds)).data["episodes"]}
    total = ds.episodes["total_reward"]
    assert len(why) == 32
    assert "longest" in why[41] and "shortest" in why[67] and "finding" in why[83]
    assert "highest return" in why[int(total.argmax())] and "lowest return" in why[int(total.argmin())]


@pytest.mark.slow
def test_compressed_datasets_give_the_same_page(tmp_path: Path) -> None:
    made = []
    for storage in ("memmap", "zarr"):
        ds = rlds_cli.create(f"local/{storage}", map(page_data.reaching, range(3)), storage=storage)  # type: ignore[arg-type]
        made.append(Document(page_of(ds)).data)
    made[1]["id"] = made[0]["id"]
    assert made[0] == made[1]


# -- how big


@pytest.mark.slow
def test_it_stays_small() -> None:
    """Budgets hold where there is too much of everything: episodes, elements, text and pictures."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (21, 96, 96, 3), np.uint8)

    def many() -> Any:
        for k in range(11_000):
            t = 20 if k % 400 == 0 else 1
            yield {
                "observation": {
                    "state": rng.normal(size=(t + 1, 400)),
                    "image": noise[: t + 1] if t > 1 else noise[:2],
                },
                "action": rng.normal(size=(t, 60)),
                "next": {"reward": rng.normal(size=t), "terminated": True},
                "note": [f"{page_data.HOSTILE * 9}{k}" for _ in range(t)],
            }

    ds = rlds_cli.create("local/much", many())
    page = page_of(ds)
    assert len(page.encode()) < 5 * MIB
    assert "of 11,000 episodes are listed" in page and "of 11,000 episodes are in this file" in page


# -- writing


def test_a_report_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    ds, to = lists([3]), tmp_path / "report.html"
    first = write_page(ds, to)
    assert first.path == to and first.bytes == to.stat().st_size and first.episodes == 1
    write_page(ds, to)
    to.write_text("<title>my page</title>")
    with pytest.raises(NameTaken, match="is not a report of rlds"):
        write_page(ds, to)
    assert to.read_text() == "<title>my page</title>"
    write_page(ds, to, force=True)
    assert to.read_text().startswith("<!doctype html>")
    (tmp_path / "empty.html").touch()
    write_page(ds, tmp_path / "empty.html")
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix != "") == ["empty.html", "report.html"]


def test_what_is_there_stays_where_making_it_fails(tmp_path: Path) -> None:
    ds, to = lists([3]), tmp_path / "report.html"
    write_page(ds, to)
    before = to.read_bytes()
    (ds.path / ds.store.table.path_of("observation") / "c/0/0").write_bytes(b"")
    with pytest.raises(DamagedDataset):
        write_page(ds.path, to)
    assert to.read_bytes() == before and [p.name for p in tmp_path.glob("*report*")] == ["report.html"]


def test_places_that_are_no_file(tmp_path: Path) -> None:
    ds = lists([3])
    with pytest.raises(RldsError, match=r"There is no directory .*none") as e:
        write_page(ds, tmp_path / "none" / "report.html")
    assert e.value.hint == f"mkdir -p {tmp_path / 'none'}"
    with pytest.raises(RldsError, match="is a directory"):
        write_page(ds, tmp_path)
    write_page(ds, Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    write_page(lists([3]), tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "real.html").read_text().startswith("<!doctype")


# -- the command


def test_the_command(tmp_path: Path) -> None:
    lists([3])
    to = tmp_path / "report.html"
    said = run_rlds("inspect", "local/lists", "--html", to)
    assert said.returncode == 0 and said.stdout.decode().startswith(f"{to}  ")
    piped = run_rlds("inspect", "local/lists", "--html", "-")
    assert piped.stdout == to.read_bytes()
    found = json.loads(run_rlds("inspect", "local/lists", "--html", to, "--json").stdout)
    assert found["bytes"] == to.stat().st_size and found["episodes_viewed"] == 1
    to.write_text("something else")
    refused = run_rlds("inspect", "local/lists", "--html", to)
    assert refused.returncode == 1 and b"--force replaces it" in refused.stderr
    assert run_rlds("inspect", "local/lists", "--html", to, "--force").returncode == 0
    assert run_rlds("inspect", "local/lists", "--html", "-", "--json").returncode == 2
    assert run_rlds("inspect", "local/lists", "--html", to, "--episode", "0").returncode == 2
    assert run_rlds("inspect", to, "--html", "x.html").returncode == 2
    assert run_rlds("inspect", "local/lists", "--html", to, "--plot", "returns").returncode == 2


def test_a_report_without_a_name_is_named_after_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_dataset("pendulum-d4rl")
    monkeypatch.chdir(tmp_path)
    for words in (["--html"], ["--html", "--force"]):
        run = run_rlds("inspect", "sample/pendulum-d4rl", *words)
        assert run.returncode == 0 and run.stdout.startswith(b"pendulum-d4rl.html"), run.stderr
        assert [file.name for file in tmp_path.glob("*.html")] == ["pendulum-d4rl.html"]
    run = run_rlds("inspect", "sample/pendulum-d4rl", "--html", "mine.html")
    assert run.returncode == 0 and (tmp_path / "mine.html").is_file()
