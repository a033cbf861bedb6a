"""Hooks of MkDocs: what the site has beside the pages of ``docs/``, and what its search makes of them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/RESULTS.md")
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))

# How much the search prefers a page, by the beginning of its path; 0 leaves it out. The first that fits counts.
BOOSTS = {
    "CHANGELOG.md": 0,
    "benchmarks/": 0,
    "start/faq.md": 1.3,
    "start/": 1.4,
    "README.md": 0.5,
    "cookbook/": 1.9,
    "guides/loader.md": 1.8,
    "guides/dataset.md": 1.8,
    "guides/homes.md": 1.8,
    "guides/": 1.4,
    "coming-from/": 0.9,
    "concepts/": 0.8,
    "families/": 0.8,
    "reference/commands.md": 1.0,
    "reference/commands": 0.7,
    "reference/all-pages.md": 0.3,
    "reference/learning-curves.md": 0.5,
    "reference/recordings.md": 1.2,
    "reference/tables.md": 1.2,
    "reference/": 0.8,
    "": 0.3,
}

_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
_ROW = re.compile(r"^\|.*$", re.M)
_EMPTY_HEAD = re.compile(r"<thead>\s*<tr>\s*(?:<th[^>]*></th>\s*)+</tr>\s*</thead>")


def on_config(config: Any) -> Any:
    """Show the version at the foot of every page."""
    version = re.findall(r'^__version__ = "(.*)"$', (ROOT / "rlds_cli/__init__.py").read_text(), re.M)[0]
    config["copyright"] = f"rlds {version}, MIT licence"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository, the examples, and a page for each notebook."""
    for name in (*PAGES, *(f"examples/{f.name}" for f in sorted((ROOT / "examples").glob("*.py")))):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for notebook in NOTEBOOKS:
        shown = notebook.relative_to(ROOT / "docs")
        files.append(File.generated(config, f"{shown.with_suffix('')}.md", content=page_of(notebook)))
    return files


def page_of(notebook: Path) -> str:
    """A notebook with its outputs, as a page."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            shown = data.get("text/html") or data.get("image/svg+xml")
            text = "".join(output.get("text") or data.get("text/plain") or ())
            parts.append("".join(shown) if shown else f"```text\n{text.rstrip()}\n```")
    return "\n\n".join([*parts, f"[This notebook]({notebook.name}) runs offline.\n"])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files of the repository links within the site, where ``docs/`` is the root.

    A bar in the code of a table has a backslash for GitHub; MkDocs would show it.
    """
    shown = Path(page.file.src_uri)
    boost = next(boost for start, boost in BOOSTS.items() if page.file.src_uri.startswith(start))
    page.meta["search"] = {"boost": boost} if boost else {"exclude": True}
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["toc", "navigation"]
    written = shown if page.file.src_uri in PAGES else Path("docs", shown)

    def within(link: re.Match[str]) -> str:
        target = os.path.normpath(written.parent / link[1]).removeprefix("docs/")
        if target.endswith(".ipynb") and not page.file.src_uri.endswith(f"{Path(target).stem}.md"):
            target = str(Path(target).with_suffix(".md"))
        return f"]({os.path.relpath(target, shown.parent)}"

    return _ROW.sub(lambda row: re.sub(r"`[^`]*`", _bare, row[0]), _LINK.sub(within, markdown))


def _bare(code: re.Match[str]) -> str:
    """Code of a table without backslashes before its bars."""
    return code[0].replace("\\|", "|")


def on_page_content(html: str, **_: Any) -> str:
    """Take away heads of tables that are empty, which Markdown demands."""
    return _EMPTY_HEAD.sub("", html)


def on_post_build(config: Any) -> None:
    """Write the index of the search as a script, too: a page from a disk may read no other file."""
    search = Path(config["site_dir"], "search")
    index = (search / "search_index.json").read_text(encoding="utf-8")
    (search / "search_index.js").write_text(f"var __index = {index}\n", encoding="utf-8")
