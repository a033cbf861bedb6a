"""The command line ``rlds``: one module per command, with its options and what it prints.

A command module imports the library inside its function, and the rich pages of `rlds_cli.look.pages` when they are
drawn: ``rlds --help`` must not wait for NumPy.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from rlds_cli.cli import out
from rlds_cli.cli.commands import COMMANDS as COMMANDS
from rlds_cli.cli.commands import app as app
from rlds_cli.errors import NoPermission, NoSpace, RldsError

_UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EROFS)


def main() -> None:
    """Run the command line; exit 0 done, 1 expected failure, 2 usage, 130 interrupted."""
    os.umask(os.umask(0o077) | stat.S_IWOTH)  # also where there is none, a new home is not for everybody to write
    try:
        with out.escaped_warnings():
            _run()
    except RldsError as e:
        out.error(e)
        sys.exit(1)
    except PermissionError as e:  # a home or a file of another user, in any command
        out.error(NoPermission(f"{e.filename} cannot be read or written by this user."))
        sys.exit(1)
    except KeyboardInterrupt:
        out.stopped("stopped")
        sys.exit(130)
    except BrokenPipeError:
        _discard_stdout()
        sys.exit(1)
    except OSError as e:
        from rlds_cli.base.files import disk

        if e.errno in _UNUSABLE_PATH:
            out.error(NoPermission(f"{e.filename} cannot be used as a path: {e.strerror}."))
            sys.exit(1)
        if disk.is_failing(e):
            out.error(disk.failure(e))
            sys.exit(1)
        if not disk.is_full(e):
            out.crash(e)
            sys.exit(1)
        out.error(NoSpace(f"The disk is full: {e.filename or 'the output'} could not be written."))
        _discard_stdout()
        sys.exit(1)
    except Exception as e:
        out.crash(e)
        sys.exit(1)


def _run() -> None:
    """Run the command, and write what is buffered: Python itself would fail to at exit, with a code of its own."""
    out.configure(json="--json" in sys.argv)  # for what fails before the command itself says so
    try:
        app()
    except SystemExit:
        sys.stdout.flush()
        raise


def _discard_stdout() -> None:
    """Drop what is still buffered for stdout, so that Python does not fail to write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
