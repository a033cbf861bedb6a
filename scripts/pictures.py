"""Draw the diagrams of the documentation, the page of `rlds inspect`, and the chart of the README from the results.

    python scripts/pictures.py            write them into docs/pictures
    python scripts/pictures.py --check    exit 1 when a file is not what would be drawn

An SVG follows the colours of the page that shows it, light or dark.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import published  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"

_STYLE = """<style>
text{font:14px system-ui,sans-serif;fill:#24292f}.small{font-size:12px;fill:#57606a}.code{font:13px monospace}
.mid{text-anchor:middle}.end{text-anchor:end}rect{stroke-width:1.3}path{fill:none;stroke:#6e7781;stroke-width:1.3}
.a{fill:#dfe5fb;stroke:#4051b5}.b{fill:#ffe8c7;stroke:#b35900}.c{fill:#d6f0dc;stroke:#1f7a3a}
.none{fill:none;stroke:#8c959f;stroke-dasharray:4 3}.frame{fill:none;stroke:#4051b5;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#a9b4c0}path{stroke:#a9b4c0}
.a{fill:#2b3566;stroke:#8fa2ff}.b{fill:#573a12;stroke:#f0a94a}.c{fill:#1b4527;stroke:#6fcf87}
.none{stroke:#7d8590}.frame{stroke:#8fa2ff}}
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8"/></marker></defs>"""


def svg(width: int, height: int, title: str, *parts: str, style: str = _STYLE) -> str:
    """A picture of this size, with the name that a screen reader says."""
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{title}</title>\n{style}\n{body}\n</svg>\n'
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place; ``kind`` is of the style: small, code, mid, end."""
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:g}" y="{y:g}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escaped}</text>'


def box(x: float, y: float, words: str = "", kind: str = "a", width: float = 44, height: float = 28) -> str:
    """A rounded box with words in its middle."""
    drawn = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{kind}"/>'
    return drawn + (text(x + width / 2, y + height / 2 + 5, words, "mid") if words else "")


def arrow(*points: tuple[float, float]) -> str:
    """A line through points, with a tip at the last one."""
    return f'<path d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}" marker-end="url(#tip)"/>'


def episode() -> str:
    """An episode of T = 3 steps: T+1 rows, and what one transition takes."""

    def drawn() -> Iterator[str]:
        for t in range(4):
            x = 170 + 70 * t
            yield text(x + 22, 24, f"row {t}", "mid small")
            yield box(x, 36, f"o{t}")
            for k, (letter, kind) in enumerate((("a", "b"), ("r", "c"))):
                yield box(x, 80 + 44 * k, f"{letter}{t}" if t < 3 else "", kind if t < 3 else "none")
        for y, name in ((55, "observation"), (99, "action"), (143, "next/reward")):
            yield text(155, y, name, "end code")
        yield '<path class="frame" d="M234 30H360V70H290V158H234Z"/>'
        yield text(170, 182, "the transition of step 1: its row, and the observation of the next one", "small")
        yield text(440, 143, "no step: zeros, never read", "small")

    return svg(640, 196, "An episode of three steps in four rows", *drawn())


def windows() -> str:
    """What the windows of a loader take of an episode of eight steps."""
    rows = (
        ("Transition()", [(3, "a")], "one step and its result"),
        ("Slice(4)", [(k, "a") for k in range(2, 6)], "four steps, all real"),
        ("Slice(4, before=3)", [*((k, "none") for k in (-2, -1)), (0, "a"), (1, "a")], "every step ends one"),
        ("Slice(4, after=3)", [(6, "a"), (7, "a"), (8, "none"), (9, "none")], "every step starts one"),
        ("observation: (-1, 0)", [(3, "a"), (4, "a")], "Offsets: two frames ..."),
        ("action: range(3)", [(4, "b"), (5, "b"), (6, "b")], "... and a chunk of actions"),
    )

    def drawn() -> Iterator[str]:
        for t in range(8):
            yield text(303 + 36 * t, 22, f"{t}", "mid small")
        yield text(200, 22, "step", "end small")
        for i, (name, taken, words) in enumerate(rows):
            y = 34 + 38 * i
            yield text(208, y + 18, name, "end code")
            for t in range(8):
                yield f'<path d="M{288 + 36 * t} {y + 26}h30"/>'
            yield from (box(288 + 36 * t, y, "", kind, 30, 24) for t, kind in taken)
            yield text(656, y + 17, words, "small")
        yield text(288, 276, "dashed: outside of the episode; the mask is False there", "small")

    return svg(830, 290, "Windows of a loader", *drawn())


def versions() -> str:
    """Three versions of a dataset: each is a table over the same files."""
    tables = (
        ("v1", (0, 1, 2), "as it was downloaded"),
        ("v2", (0, 2), "rlds drop --episodes 1"),
        ("v3", (0, 2, 3), "a writer appended one"),
    )
    centres = {0: 300, 1: 400, 2: 500, 3: 634}

    def drawn() -> Iterator[str]:
        for i, (name, held, words) in enumerate(tables):
            y = 14 + 48 * i
            yield text(20, y + 19, name)
            yield text(54, y + 19, words, "small")
            yield from (box(centres[k] - 22, y, f"{k}", "b") for k in held)
        for k, x in centres.items():
            yield arrow((x, 138 + (8 if k in (0, 2, 3) else 0) - (96 if k == 1 else 0)), (x, 178))
        yield box(250, 182, "", "a", 300, 36)
        yield box(584, 182, "", "c", 100, 36)
        yield from (f'<path d="M{x} 182v36"/>' for x in (350, 450))
        yield text(400, 238, "segment 0 of each field", "mid small")
        yield text(634, 238, "segment 1", "mid small")
        yield text(54, 205, "rows, written once", "small")

    return svg(710, 250, "Versions share the files of a dataset", *drawn())


def mixture() -> str:
    """Two datasets with the shares 3 and 1, and a batch of eight samples."""

    def drawn() -> Iterator[str]:
        yield box(20, 20, "robot: 900 episodes", "a", 180, 40)
        yield box(20, 96, "simulation: 40,000", "b", 180, 40)
        yield text(212, 36, "3", "small")
        yield text(212, 112, "1", "small")
        yield arrow((202, 40), (280, 64))
        yield arrow((202, 116), (280, 92))
        for k in range(8):
            kind = "b" if k % 4 == 2 else "a"
            yield box(292 + 40 * k, 62, "", kind, 32, 32)
        yield text(292, 48, "a batch of eight: six and two, whatever their sizes", "small")
        yield text(292, 122, "the shares may change with the step: a schedule", "small")

    return svg(640, 156, "A batch of a mixture", *drawn())


def flow() -> str:
    """From an archive to a batch."""
    steps = (
        ("archive", "files as published", "b"),
        ("dataset", "Zarr, T+1 rows", "a"),
        ("selection", "episodes, versions", "a"),
        ("loader", "windows, samplers", "c"),
        ("batch", "tensors", "c"),
    )

    def drawn() -> Iterator[str]:
        for k, (name, words, kind) in enumerate(steps):
            x = 16 + 158 * k
            yield box(x, 44, name, kind, 112, 40)
            yield text(x + 56, 102, words, "mid small")
            if k < 4:
                yield arrow((x + 114, 64), (x + 154, 64))
        for k, words in enumerate(("converted once", "select, label", "seed", "gathered")):
            yield text(16 + 158 * k + 134, 30, words, "mid small")
        yield arrow((230, 112), (230, 140), (72, 140), (72, 112))
        yield text(150, 158, "rlds verify --trace compares with the archive", "mid small")
        yield arrow((262, 112), (262, 140), (388, 140), (388, 112))
        yield text(420, 145, "preprocess makes a dataset of a dataset", "small")

    return svg(780, 172, "From archive to batch", *drawn())


def speed() -> str:
    """Batches a second of the peers, where those of rlds are 100; see benchmarks/published.py."""
    peers = (
        ("rlds", 1.0),
        ("rlox", published.worst("transitions", "rlox: OfflineDatasetBuffer")),
        ("cpprb", published.worst("transitions", "cpprb: ReplayBuffer")),
        ("TorchRL", published.worst("transitions", "torchrl: memmap")),
    )

    def drawn() -> Iterator[str]:
        yield text(16, 24, "Batches of 256 transitions, relative to rlds")
        for k, (name, ratio) in enumerate(peers):
            y, width = 40 + 30 * k, 420 / ratio
            yield text(88, y + 16, name, "end")
            yield box(100, y, "", "none" if k else "a", width, 22)
            yield text(108 + width, y + 16, f"{100 / ratio:.0f} %" if k else "100 %", "small")

    return svg(600, 168, "Batches a second, relative to rlds", *drawn())


SHOWN, COLUMNS = "sample/cartpole-minari", 96  # of the terminal that the page of a dataset is on
_CELL, _LINE = 8, 19  # pixels
_COLOURS = """<style>
rect{fill:#f6f8fa;stroke:#d0d7de}text{font:13px "DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#24292f}
.bold{font-weight:bold}.dim{fill:#6e7781}.cyan{fill:#0a6a87}.yellow{fill:#8a5a00}.red{fill:#b3201f}
@media (prefers-color-scheme:dark){rect{fill:#161b22;stroke:#30363d}text{fill:#e6edf3}.dim{fill:#8b949e}
.cyan{fill:#56c8e0}.yellow{fill:#e3b341}.red{fill:#ff7b72}}
</style>"""


def inspect() -> str:
    """What `rlds inspect` prints of a sample on a terminal, in its colours."""
    import tempfile

    from rich.console import Console

    import rlds_cli
    from rlds_cli import look

    with tempfile.TemporaryDirectory() as home:
        ds = rlds_cli.download(SHOWN, home=home)
        shown = look.page(look.summarise(ds), ref=SHOWN)
        console = Console(width=COLUMNS, force_terminal=True, color_system="standard", highlight=False, emoji=False)
        lines = [[(f"$ rlds inspect {SHOWN}", None)]]
        lines += [[(s.text, s.style) for s in line] for line in console.render_lines(shown, pad=False)]
    drawn = (part for k, line in enumerate(lines) for part in _printed(line, 30 + _LINE * k))
    height = 26 + _LINE * len(lines)
    frame = f'<rect x="0.5" y="0.5" width="{_CELL * COLUMNS + 31}" height="{height - 1}" rx="6"/>'
    return svg(_CELL * COLUMNS + 32, height, "What rlds inspect shows of a dataset", frame, *drawn, style=_COLOURS)


def _printed(line: list[tuple[str, Any]], y: int) -> Iterator[str]:
    """The parts of a line of a terminal; each keeps the width of its cells, whatever font a reader has."""
    column = 0
    for words, style in line:
        kinds = [name for name in ("bold", "dim") if style and getattr(style, name)]
        kinds += [style.color.name] if style and style.color else []
        for part in re.finditer(r"\S+(?: \S+)*", words):
            x, width = 16 + _CELL * (column + part.start()), _CELL * len(part[0])
            size = f'textLength="{width}" lengthAdjust="spacingAndGlyphs"'
            yield text(x, y, part[0], " ".join(kinds)).replace("<text ", f"<text {size} ")
        column += len(words)


def growth() -> str:
    """How the cost of a loader and of a home grows, each figure beside that of the smallest size."""
    points: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in json.loads(published.GROWTH.read_text(encoding="utf-8"))["rows"]:
        size, _, what = row["what"].partition(" ")
        part, _, name = what.partition(": ")
        points.setdefault(part, {}).setdefault(name, []).append((int(size.replace(",", "")), row["value"]))
    titles = {"home": "datasets in a home", "ranks": "ranks", "fields": "fields"}
    kinds = {"to the first batch": "first", "a batch": "batch", "memory": "memory", "rlds list --local": "list"}
    names = {kind: name for name, kind in kinds.items()} | {"first": "opening, first batch", "work": "proportional"}

    def drawn() -> Iterator[str]:
        yield f"<style>{_LINES}</style>"
        for k, (part, lines) in enumerate(points.items()):
            x, y = 56 + 250 * (k % 3), 40 + 210 * (k // 3)
            yield from panel(x, y, titles.get(part, part), {kinds[name]: line for name, line in lines.items()})
        for k, (kind, name) in enumerate(names.items()):
            yield f'<path class="{kind}" d="M560 {290 + 22 * k}h28"/>'
            yield text(596, 294 + 22 * k, name, "small")

    return svg(780, 440, "How cost grows with the work", *drawn())


_LINES = """.first{stroke:#4051b5;stroke-width:2}.batch{stroke:#1f7a3a;stroke-width:2}
.memory{stroke:#b35900;stroke-width:2}.list{stroke:#8250df;stroke-width:2}
.work{stroke-dasharray:3 4}.axis{stroke-width:1}
@media (prefers-color-scheme:dark){.first{stroke:#8fa2ff}.batch{stroke:#6fcf87}.memory{stroke:#f0a94a}
.list{stroke:#c297ff}}"""


def panel(x: float, y: float, title: str, lines: Mapping[str, list[tuple[int, float]]]) -> Iterator[str]:
    """A chart, logarithmic on both sides: each line begins at 1."""
    width, height, decade = 190, 140, 35  # pixels; of a factor of ten upwards
    sizes = sorted({size for line in lines.values() for size, _ in line})
    first, last = math.log10(sizes[0]), math.log10(sizes[-1])

    def at(size: int, times: float) -> str:
        across = (math.log10(size) - first) / (last - first) * width
        return f"{x + across:.1f} {y + height - 20 - max(math.log10(times), -0.5) * decade:.1f}"

    yield text(x, y - 10, title)
    yield f'<path class="axis" d="M{x} {y}V{y + height}H{x + width}"/>'
    for times in (1, 10, 100, 1000):
        yield text(x - 6, y + height - 16 - math.log10(times) * decade, f"{times:,}", "end small")
    for size, anchor in ((sizes[0], "small"), (sizes[-1], "end small")):
        yield text(x if size == sizes[0] else x + width, y + height + 16, f"{size:,}", anchor)
    top = min(3.4, last - first)
    yield f'<path class="work" d="M{at(sizes[0], 1)}L{at(round(10 ** (first + top)), 10**top)}"/>'
    for kind, line in lines.items():
        drawn = "L".join(at(size, value / line[0][1]) for size, value in line)
        yield f'<path class="{kind}" d="M{drawn}"/>'


DRAWN = {
    "growth.svg": growth,
    "inspect.svg": inspect,
    "concept-episode.svg": episode,
    "concept-windows.svg": windows,
    "concept-versions.svg": versions,
    "concept-mixture.svg": mixture,
    "concept-flow.svg": flow,
    "speed.svg": speed,
}


def same(picture: str, other: str) -> bool:
    """True for equal pictures, but for sizes on disk, which depend on the file system."""
    return re.sub(r"[\d.]+ KiB", "", picture) == re.sub(r"[\d.]+ KiB", "", other)


def main(check: bool) -> int:
    """Write the pictures, or say which are not current."""
    drawn = {name: draw() for name, draw in DRAWN.items()}
    old = [
        name for name in drawn if not (PICTURES / name).exists() or not same((PICTURES / name).read_text(), drawn[name])
    ]
    if check:
        print(*old, sep="\n")
        return 1 if old else 0
    for name in old:
        (PICTURES / name).write_text(drawn[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
