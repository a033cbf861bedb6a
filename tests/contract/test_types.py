"""What type checkers know of batches: mypy reads a script of a user, and says which type each expression has."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlds_cli.loader import Loader
from rlds_cli.loader.arguments import Arguments

ROOT = Path(__file__).parents[2]

SCRIPT = """
import rlds_cli
from rlds_cli.loader import Loader, Slice

ds = rlds_cli.open_dataset("local/x")
tensors = Loader(ds, 256, window=Slice(20), seed=1)
for batch in tensors:
    reveal_type(batch["observation"])  # Tensor
    reveal_type(batch["next", "reward"])  # Tensor
    reveal_type(batch["next"]["reward"])  # Tensor
    reveal_type(batch["next/reward"])  # Tensor
    reveal_type(batch.sarsd())  # tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    reveal_type(batch.to("cuda")["action"])  # Tensor
    reveal_type(batch.numpy()["action"])  # ndarray
    reveal_type(batch.map(len)["action"])  # int
for arrays in Loader(ds, 256, backend="numpy"):
    reveal_type(arrays["observation"])  # ndarray
    reveal_type(arrays.sarsd()[2])  # ndarray
    reveal_type(arrays.clone()["next"]["reward"])  # ndarray
for some in ds.loader(64, backend="numpy", steps=2):
    reveal_type(some["action"])  # ndarray
for some_tensors in ds.loader(64):
    reveal_type(some_tensors["action"])  # Tensor
reveal_type(ds.episode(0)["action"])  # ndarray
reveal_type(ds[:5]["next/reward"])  # ndarray
options = {"seed": 1}
Loader(ds, 256, windw=Slice(20))  # error
Loader(ds, 256, backend="tensorflow")  # error
"""


@pytest.mark.slow
def test_values_of_batches_have_the_type_of_the_backend(tmp_path: Path) -> None:
    script = tmp_path / "training.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900).stdout
    of_line: dict[int, str] = {}
    for number, text in re.findall(r"training\.py:(\d+): (.*)", told):
        of_line.setdefault(int(number), text)
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        _, _, expected = line.partition("  # ")
        if not expected:
            assert number not in of_line, of_line
        elif expected == "error":
            assert of_line[number].startswith("error: "), of_line
        else:
            known = re.search(r'"(.*)"', of_line[number])
            assert known is not None, told
            name = re.sub(r"[\w.]+\.(\w+)", r"\1", known[1])  # torch._tensor.Tensor
            assert name.removeprefix("builtins.").startswith(expected), (line, name)


def test_type_checkers_know_all_arguments_of_a_loader() -> None:
    taken = inspect.signature(Loader.__init__).parameters.values()
    names = {p.name for p in taken if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(Arguments.__annotations__) == names - {"backend"}
