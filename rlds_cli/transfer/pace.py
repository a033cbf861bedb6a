"""How fast bytes come, and for how many requests: neither faster than allowed, nor slower than is worth waiting for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rlds_cli import sizes


class Limit:
    """At most so many bytes a second over everything that takes from it; ``None`` lets all pass."""

    def __init__(self, rate: int | None) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._paid = 0.0  # until when, on the monotonic clock, what was taken is paid for

    def block(self, most: int) -> int:
        """How many bytes to read at a time, at most ``most``: no more than come in a tenth of a second."""
        return most if self.rate is None else max(1, min(most, self.rate // 10))

    def take(self, size: int, stop: threading.Event) -> None:
        """Wait until ``size`` bytes more are allowed, or ``stop`` is set."""
        if self.rate is None:
            return
        with self._lock:
            now = time.monotonic()
            self._paid = max(self._paid, now) + size / self.rate
            wait = self._paid - now
        stop.wait(wait)


class Floor:
    """Watches one connection: ``least`` bytes in every ``window`` seconds that were spent waiting for it."""

    def __init__(self, least: int, window: float) -> None:
        self._least, self._window = least, window
        self._waited, self._came = 0.0, 0

    @property
    def left(self) -> float:
        """Seconds for which one more wait may go on."""
        return self._window - self._waited + (self._window if self._came >= self._least else 0.0)

    def add(self, size: int, waited: float) -> str | None:
        """Count ``size`` bytes that came after ``waited`` seconds; why the connection is too slow, if it is."""
        self._waited, self._came = self._waited + waited, self._came + size
        if self._waited < self._window:
            return None
        came, self._waited, self._came = self._came, 0.0, 0
        return None if came >= self._least else self._said(came)

    def over(self) -> str:
        """Why a connection was given up whose wait went on for too long."""
        return self._said(self._came)

    def _said(self, came: int) -> str:
        return f"stalled: {sizes.text(came)} in {self._window:.3g} s" if came else "timed out"


class Budget:
    """How many requests something may still cost: a number, and one more for every MiB that was kept.

    What was kept once and given up is counted once: to bring it again brings nothing new.
    """

    def __init__(self, requests: int, kept: Callable[[], int] = lambda: 0) -> None:
        self._requests, self._kept = requests, kept
        self._most = self._spent = 0
        self._lock = threading.Lock()

    def spend(self) -> bool:
        """Count one more request; whether it may be made."""
        with self._lock:
            self._most = max(self._most, self._kept())
            self._spent += 1
            return self._spent <= self.requests

    @property
    def requests(self) -> int:
        """How many are allowed by now."""
        return self._requests + (self._most >> 20)
