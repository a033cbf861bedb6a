"""Packages that are needed for some formats alone."""

from __future__ import annotations

from typing import Any

from rlds_cli.errors import MissingPackage


def pyarrow() -> Any:
    """Import pyarrow with the modules that are used.

    Raises
    ------
    MissingPackage
        It is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.json
        import pyarrow.parquet
    except ImportError as e:
        raise MissingPackage(
            "Parquet, Arrow, CSV and JSON lines files are read with pyarrow, which is not installed.",
            hint="pip install 'rlds-cli[arrow]'",
        ) from e
    return pa
