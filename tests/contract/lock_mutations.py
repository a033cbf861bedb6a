"""Lock files changed at random: values of other types, missing and doubled members, impossible numbers and names."""

from __future__ import annotations

import copy
import random
from typing import Any

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, 1e999, float("nan"), 1 << 62, 1 << 63, 10**400, "", "x", "0" * 64, "\x1b[31m"),
    *("..", "../../etc/passwd", "/etc/passwd", "~/.ssh/id_rsa", "C:\\x", "file:///etc/passwd", "FILE:///etc/passwd"),
    *("http://[::1", "http://user:secret@host/x", "package:../../x", "subprocess:run", "os:system", "builtins:exec"),
    *("\ud800", "\0", "a" * 5000, "local/x", "LOCAL/X", "sample/pendulum-d4rl", "rlds1:" + "f" * 64, "/etc/passwd:f"),
    *([], {}, [[]], [None], {"": ""}, [1, 2, 3], {"id": 3}, ["/etc/passwd", "0" * 64]),
)


def deep(levels: int) -> Any:
    """Lists in lists."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def mutated(lock: Any, rng: random.Random) -> Any:
    """The JSON value of a lock, changed in one to four places."""
    changed = copy.deepcopy(lock)
    for _ in range(rng.choice((1, 1, 2, 4))):
        changed = _changed(changed, rng)
    return changed


def _changed(lock: Any, rng: random.Random) -> Any:
    places = list(_places(lock))
    if not places or rng.random() < 0.02:
        return rng.choice((*STRANGE, deep(100)))
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            _, other = rng.choice(places)
            if isinstance(holder, dict):
                holder[str(other)] = copy.deepcopy(holder[key])
        case 2:
            there, at = rng.choice(places)
            holder[key] = copy.deepcopy(there[at])
        case 3 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case _:
            holder[key] = copy.deepcopy(rng.choice((*STRANGE, deep(40))))
    return lock


def _places(value: Any) -> Any:
    """Every (container, key) in a JSON value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])
