"""Chromium without a window, spoken to over a pipe in the DevTools protocol: JSON messages that end in a NUL.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
_PATIENCE = 60.0  # seconds for one answer


def find() -> str | None:
    """Where a Chromium is, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser with a profile of its own, ended with the `with`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._start()

    def _start(self) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        read, to_browser = os.pipe()
        from_browser, write = os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (read, write)]

        def third_and_fourth() -> None:  # where Chromium listens and speaks
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        self._process = subprocess.Popen(
            [self._path, *_FLAGS, f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=third_and_fourth, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (read, write, *theirs):
            os.close(fd)
        self._to, self._from, self._buffer, self._sent = to_browser, from_browser, b"", 0
        self._tabs: dict[str, str] = {}  # their targets and sessions
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        self._profile.cleanup()

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, address: str = "") -> Page:
        """Open a file in a tab of its own, and wait until it is loaded."""
        return self.visit(file.as_uri() + address, width=width, height=height, dark=dark)

    def visit(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """Open an address in a tab of its own, and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._tabs[target] = session
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.size(width, height)
        page.media(dark=dark)
        page.go(url)
        return page

    @contextmanager
    def tabs(self) -> Iterator[Browser]:
        """Close the tabs that are opened inside: their pages would go on to ask for what has changed."""
        before, self._tabs = self._tabs, {}
        try:
            yield self
        finally:
            closed, self._tabs = self._tabs, before
            try:
                for target in closed:
                    self.call("Target.closeTarget", targetId=target)
            except (OSError, EOFError):  # it hangs, or has ended: the next test has another one
                self._end()
                self._start()
            self.events[:] = [e for e in self.events if e.get("sessionId") not in closed.values()]

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """Ask for something, and wait for the answer; what happens meanwhile is kept in ``events``."""
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def wait(self, happened: Any) -> None:
        """Wait until an event was seen for which ``happened`` holds."""
        deadline = time.monotonic() + _PATIENCE
        if any(map(happened, self.events)):
            return
        while "method" not in (found := self._receive(deadline)) or not happened(found):
            pass

    def _receive(self, deadline: float) -> dict[str, Any]:
        """Return the next message; raises TimeoutError after the deadline, however much the browser has to say."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Chromium does not answer; it says {self.events[-3:]}")
            if b"\0" in self._buffer:
                break
            if select.select([self._from], [], [], left)[0]:
                data = os.read(self._from, 1 << 20)
                if not data:
                    raise EOFError("Chromium has ended")
                self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        if "method" in found:
            self.events.append(found)
        if found.get("method") == "Page.javascriptDialogOpening":  # the page waits for an answer
            raise AssertionError(f"the page asks its user: {found['params']}")
        return found


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def go(self, url: str) -> None:
        """Open an address in this tab, and wait until it is loaded; complaints and requests are those of this page."""
        self._load("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page anew, and wait until it is: what is asked of a page that goes away is never answered."""
        self._load("Page.reload")

    def _load(self, method: str, **parameters: Any) -> None:
        self._browser.events[:] = [e for e in self._browser.events if e.get("sessionId") != self._session]
        self.call(method, **parameters)
        self._browser.wait(lambda e: e["method"] == "Page.loadEventFired" and e.get("sessionId") == self._session)

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask the tab for something."""
        return self._browser.call(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true of the page, and return its value; True for an element."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            value = self.run(f"(v => v instanceof Node || v)({expression})")
            if value:
                return value
            time.sleep(0.02)
        raise TimeoutError(f"never true: {expression}; the page complains of {self.complaints[:10]}")

    def key(self, key: str, code: int, *, shift: bool = False) -> None:
        """Press a key: ``ArrowRight`` is 39, ``Tab`` 9, ``Enter`` 13; that of a letter is the capital's."""
        text = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=8 * shift,
                **text,
            )
            text = {}

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press or release the mouse: ``moved``, ``pressed``, ``released``, or turn its wheel: ``wheel``."""
        button = {"button": "left", "clickCount": 1} if kind in ("pressed", "released") else {}
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind.capitalize()}", x=x, y=y, **button, **more)

    def size(self, width: int, height: int) -> None:
        """Change the size of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def media(self, *, dark: bool = False, media: str = "screen") -> None:
        """Change what the style sheet is asked for."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def screenshot(self, to: Path) -> None:
        """Take a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    @property
    def complaints(self) -> list[str]:
        """Exceptions, errors and warnings of the console, so far."""
        found = []
        for e in self._events():
            p = e["params"]
            if e["method"] == "Runtime.exceptionThrown":
                found.append(str(p["exceptionDetails"]))
            elif e["method"] == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
                found.append(p["entry"]["text"])
            elif e["method"] == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
                found.append(str(p["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, without what stands in itself."""
        asked = [e["params"]["request"]["url"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith("data:")]

    def _events(self) -> list[dict[str, Any]]:
        return [e for e in self._browser.events if e.get("sessionId") == self._session]


if __name__ == "__main__":
    print(
        f"The browser was {find()}." if find() else f"No browser was here ({', '.join(NAMES)}): its tests were skipped."
    )
