"""The account of an archive, as lines: what is used, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rlds_cli.archives import Entry
from rlds_cli.base import text

_SHOWN = 12  # entries that are left out


def account_lines(
    account: Sequence[Entry], *, most: int | None = _SHOWN, more: str = "--json lists all"
) -> Iterator[str]:
    """Count what is used and what is left out, by kind; name what is left out, at most so many entries.

    ``more`` says where the others are.
    """
    if not account:
        return
    used, lost = ([e for e in account if bool(e.left_out) is gone] for gone in (False, True))
    yield f"used: {_counted(used)}"
    untold = any(e.is_untold for e in used)
    yield f"left out: {_counted(lost) if lost or not untold else 'not known, since the reader gives no account'}"
    shown = lost if most is None or len(lost) <= most else lost[: most - 1]
    yield from (f"  {named(e)}: {e.left_out}" for e in shown)
    if len(shown) < len(lost):
        yield f"  and {_counted(lost[len(shown) :])} more; {more}"


def named(e: Entry) -> str:
    """Return the name of an entry, with its kind unless it is one file, and with its number if there are several."""
    name = e.name or "no name"
    kind = text.plural(e.count, e.kind) if e.count > 1 else "" if e.is_file else e.kind
    return f"{name} ({kind})" if kind else name


def _counted(entries: Sequence[Entry]) -> str:
    found: Counter[str] = Counter()
    for e in entries:
        found[e.kind] += e.count
    return ", ".join(text.plural(n, kind) for kind, n in found.items()) or "nothing"
