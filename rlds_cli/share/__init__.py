"""Send datasets to stores, where others read them.

`push` sends a version of a dataset to an address, and `collect` removes from there what no version needs. `index` lets
a directory of a dataset be read at its address as it lies. `catalogue` writes a page of all datasets below
an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_cli.base.faces import lazy

if TYPE_CHECKING:
    from rlds_cli.share.cataloguing import catalogue
    from rlds_cli.share.collecting import collect
    from rlds_cli.share.indexing import index
    from rlds_cli.share.pushing import push

__all__ = ["catalogue", "collect", "index", "push"]

lazy(
    __name__,
    {
        "cataloguing": "catalogue",
        "collecting": "collect",
        "indexing": "index",
        "pushing": "push",
    },
)
