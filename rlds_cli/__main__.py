"""The command ``rlds``, which is also ``python -m rlds_cli``: how its process starts and ends."""

import atexit
import gc
import os
import sys
from contextlib import suppress

_ALLOCATIONS = 50_000  # between two searches for cycles: with Python's 700, they take a tenth of a short command

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current directory: only `--fn` imports from it


def run() -> None:
    """Run the command line."""
    gc.set_threshold(_ALLOCATIONS)
    codes: list[int] = []
    atexit.register(_leave, codes)  # before all others, so that it is called after them
    from rlds_cli.cli import main

    try:
        main()
        codes.append(0)
    except SystemExit as e:
        codes += [e.code] if isinstance(e.code, int) else []
        raise


def _leave(codes: list[int]) -> None:
    """End the process at once if the command has ended: to free one by one what it has made takes 5 to 20 ms."""
    if codes:
        with suppress(Exception):  # Python tells of what cannot be written
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


if __name__ == "__main__":
    run()
