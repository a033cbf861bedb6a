"""Single values of Dopamine's logs, for `rlds verify --trace`. Files are unpacked up to the row: it takes a while."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlds_cli.archives.atari_dqn.logs import NAME, open_column, rows
from rlds_cli.archives.cells import Cell, Spot
from rlds_cli.ted import FLAGS, REWARD

_NAMES = {"observation": "observation", "action": "action", "reward": REWARD, "terminal": FLAGS[0]}
_NUMBER = re.compile(r"(?<=_ckpt\.)\d+(?=\.gz$)")


def cells(spot: Spot) -> Iterator[Cell]:
    """What stands in the row of a step; the frame of the one after, which may lie in the next checkpoint."""
    for after in (False, True):
        if after and spot.is_last:
            return
        number, row = _place(spot, spot.step + after)
        for path in sorted(spot.file.parent.glob(f"$store$_*_ckpt.{number}.gz")):
            found = NAME.fullmatch(path.name)
            if found is None or (after and found["store"] != "observation"):
                continue
            with open_column(path) as (f, member):
                f.skip(row * member.row_bytes)
                value = rows(f, member, 1)[0]
            field = _NAMES.get(found["store"]) or f"info/{found['store']}"
            at = f"{path.name}[{row}]"
            yield Cell(f"next/{field}" if after else field, at, bool(value) if field == FLAGS[0] else value)


def _place(spot: Spot, step: int) -> tuple[int, int]:
    """Checkpoint and row of a step: in each checkpoint the last row comes first."""
    capacity = int(spot.facts["capacity"])
    found = _NUMBER.search(spot.file.name)
    at = (spot.first + 1) % capacity + step
    row = at % capacity - 1
    return int(found[0] if found else 0) + at // capacity, row if row >= 0 else capacity - 1
