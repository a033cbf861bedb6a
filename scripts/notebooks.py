"""Run the notebooks of the documentation, and keep what their cells print and return.

python scripts/notebooks.py    each in a directory and a home of its own, offline
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def outputs(code: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a cell; what it prints, then the value of its last line, as notebooks keep them."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        for kind, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
            if hasattr(value, method):
                data[kind] = getattr(value, method)().splitlines(keepends=True)
        found.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return found


def run(notebook: Path) -> None:
    """Run a notebook, and write it with its outputs."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        os.environ |= {"RLDS_HOME": f"{directory}/home", "RLDS_OFFLINE": "1"}
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        for number, cell in enumerate(cells, 1):
            cell["outputs"] = outputs("".join(cell["source"]), namespace)
            cell["execution_count"] = number
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["execution_count"] = number
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        run(notebook)
