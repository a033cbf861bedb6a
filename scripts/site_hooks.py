"""Hooks of MkDocs: pages and examples outside of ``docs/`` are part of the site, and links to them lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/RESULTS.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the repository and the examples."""
    for name in (*PAGES, *(f"examples/{f.name}" for f in sorted((ROOT / "examples").glob("*.py")))):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links from ``docs/`` to the repository, and from the repository to ``docs/``, links within the site."""
    if page.file.src_uri in PAGES and "/" not in page.file.src_uri:
        return re.sub(r"\]\(docs/", "](", markdown)
    return re.sub(r"\]\(\.\./docs/", "](../", markdown) if "/" in page.file.src_uri else markdown.replace("](../", "](")
