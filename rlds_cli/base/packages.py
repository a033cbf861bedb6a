"""Packages that are needed for some formats alone."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from rlds_cli.errors import MissingPackage


def pyarrow(*modules: str) -> Any:
    """Import pyarrow with its module of Parquet, and with other ``modules``: ``compute``, which is slow, csv and json.

    Raises
    ------
    MissingPackage
        It is not installed.
    """
    known: Any = sys.modules.get("pyarrow")
    if known is not None and all(f"pyarrow.{name}" in sys.modules for name in ("parquet", *modules)):
        return known  # of a file of a few rows, looking for the modules again would take as long as the rows
    try:
        import pyarrow as pa
        import pyarrow.parquet

        for name in modules:
            import_module(f"pyarrow.{name}")
    except ImportError as e:
        raise MissingPackage(
            "Parquet, Arrow, CSV and JSON lines files are read with pyarrow, which is not installed.",
            hint="pip install 'rlds-cli[arrow]'",
        ) from e
    return pa
