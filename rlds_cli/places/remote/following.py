"""The newest version of a growing dataset at an address: looked for and opened in the background, for live loaders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rlds_cli.errors import DatasetNotFound, DownloadFailed, Offline, WrongHash
from rlds_cli.store import Store

EVERY = 2.0  # seconds between two questions to an address
_PASSING = (DownloadFailed, Offline, WrongHash, DatasetNotFound)  # the next question may be answered


class Follower:
    """Asks for the newest version at most every few seconds, in a thread of its own, so that nobody waits for it.

    Parameters
    ----------
    look : callable
        Is given this follower. Returns the newest version, opened; None if it is the one that it returned last.

    Attributes
    ----------
    opened : Store or None
        The version that was found last.
    """

    def __init__(self, look: Callable[[Follower], Store | None]) -> None:
        self._look = look
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + EVERY
        self._problem: BaseException | None = None
        self.opened: Store | None = None

    def newest(self, version: int) -> int:
        """Return the number of the newest version that is open here, at least ``version``; look for a later one.

        Raises
        ------
        DamagedDataset
            The last look found that another dataset is at the address.
        """
        if self._problem is not None:
            raise self._problem
        if time.monotonic() >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next = time.monotonic() + EVERY
            self._thread = threading.Thread(target=self._ask, name="rlds-follow", daemon=True)
            self._thread.start()
        return version if self.opened is None else max(version, self.opened.version)

    def _ask(self) -> None:
        try:
            self.opened = self._look(self) or self.opened
        except _PASSING:
            return
        except BaseException as e:  # is raised where it can be handled
            self._problem = e
