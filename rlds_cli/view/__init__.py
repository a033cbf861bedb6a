"""Look at episodes in a browser: a server on the loopback interface, and the pages that it serves.

`serve` shows datasets until it is interrupted, as ``rlds view`` does; `show` does it beside a notebook, and
shows what a loader gives.

A request passes `guard`, which knows the address that only its user was told, and reaches `app`: records as JSON,
arrays, pictures and videos. What is known of an episode is gathered by `episode`, `cameras`, `elements` and `times`;
its values are sent by `curves`, `frames` and `videos`, and frames are decoded in other processes, by `decoding`.
`subjects` knows which datasets may be asked for, and opens their versions. The scripts and the style of the pages are
files of `pages`, and fetch what docs/reference/view-interface.md describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.view.server import Shown, serve, show

__all__ = ["Shown", "serve", "show"]

lazy(__name__, {"server": "Shown serve show"})
