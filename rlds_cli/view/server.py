"""The server: a socket of the loopback interface, and the address that only its user is told."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from rlds_cli.base.settings import StrPath
from rlds_cli.errors import MissingPackage, RldsError

if TYPE_CHECKING:
    from rlds_cli.dataset import Dataset
    from rlds_cli.view.batches import GivesBatches

_HOST = "127.0.0.1"
_PATIENCE = 10.0  # seconds until the server has begun or ended


class Server:
    """A server in a thread of this process, until `close`.

    Attributes
    ----------
    address : str
        Of its first page, with the token.
    port : int
    """

    def __init__(
        self,
        named: Sequence[Dataset] = (),
        *,
        ids: Sequence[str] = (),
        port: int = 0,
        home: StrPath | None = None,
        read_only: bool = False,
        decode: bool = False,
        in_frames: bool = False,
        labels: Path | None = None,
        by: str = "",
        loader: GivesBatches | None = None,
    ) -> None:
        try:
            import uvicorn

            from rlds_cli.view.app import CHANGES, application
            from rlds_cli.view.batches import ShownBatches
        except ImportError as e:
            raise MissingPackage(f"rlds view needs the package {e.name}.", hint="pip install 'rlds-cli[view]'") from e
        from rlds_cli.view.decoding import Decoding
        from rlds_cli.view.guard import Guard
        from rlds_cli.view.labels import read_labels
        from rlds_cli.view.subjects import Subjects

        token = secrets.token_urlsafe(24)
        self._socket = _bound(port)
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://{_HOST}:{self.port}/{token}/"
        self._decoding = Decoding()
        self.batches = ShownBatches(loader) if loader is not None else None
        named = [*named, *(self.batches.datasets if self.batches else [])]
        self._subjects = Subjects(named, ids=ids, home=home, batches=self.batches)
        app = application(
            self._subjects,
            self._decoding,
            read_only=read_only,
            decode=decode,
            labels=None if labels is None else read_labels(labels),
            by=by,
        )
        config = uvicorn.Config(
            Guard(app, token, changes=[path.removeprefix("/") for path in CHANGES], in_frames=in_frames),
            access_log=False,  # it would show the token
            log_level="warning",
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=1,
            limit_concurrency=64,
        )
        self._server: Any = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="rlds view", daemon=True)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def start(self) -> Server:
        """Begin to answer; returns when it does."""
        self._socket.listen(64)  # who connects now waits until it does
        self._thread.start()
        return self

    def list_home(self) -> None:
        """Begin to read what the home holds, before the browser asks for it."""

        def read() -> None:
            with suppress(RldsError, OSError):  # whoever asks is told
                self._subjects.contents.entries()

        threading.Thread(target=read, name="rlds view: home", daemon=True).start()

    def close(self) -> None:
        """End; answers under way get a second."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # of answers that are cut off now
        self._server.should_exit = True
        self._decoding.close()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        self._socket.close()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, of: TracebackType | None) -> None:
        self.close()


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((_HOST, port))
    except OSError as e:
        found.close()
        raise RldsError(
            f"Port {port} of {_HOST} cannot be used: {e.strerror}.",
            hint="--port takes another; without it any free one",
        ) from e
    return found


def fragment(key: str, version: int | None = None) -> str:
    """Return the part of an address that leads to a dataset; none leads to the home."""
    if not key:
        return ""
    return f"#/d/{quote(key, safe='')}" + (f"?v={version}" if version is not None else "")


def serve(
    named: Sequence[Dataset] = (),
    *,
    ids: Sequence[str] = (),
    port: int = 0,
    home: StrPath | None = None,
    read_only: bool = False,
    decode: bool = False,
    labels: Path | None = None,
    by: str = "",
    tell: Callable[[str, int], None] = lambda address, port: None,
) -> None:
    """Show datasets in a browser until Ctrl-C.

    Parameters
    ----------
    named : sequence of Dataset
        Datasets besides those of the home.
    ids : sequence of str
        Datasets of the home that are shown first, beside ``named``. The first page is that of the only one of both,
        else the home.
    port : int
        By default any that is free.
    home : path, optional
        A home instead of ``RLDS_HOME``.
    read_only : bool
        Nothing can be changed.
    decode : bool
        Videos and images are decoded here, so that their bytes do not reach the browser's decoders.
    labels : path, optional
        A file of the labels that episodes may have; see docs/guides/decide.md.
    by : str
        Who decides, unless the page says so.
    tell : callable
        Called with the address of the first page and the port, when the server answers.

    Raises
    ------
    MissingPackage
        The extra ``view`` is not installed.
    RldsError
        The port is taken.
    """
    with Server(
        named, ids=ids, port=port, home=home, read_only=read_only, decode=decode, labels=labels, by=by
    ) as server:
        shown = [*ids, *(f"~{k}" for k in range(len(named)))]
        if len(shown) != 1:
            server.list_home()
        tell(server.address + fragment(shown[0] if len(shown) == 1 else ""), server.port)
        threading.Event().wait()


class Shown:
    """A viewer beside a notebook, which shows it in a frame; it ends with `close`, or with the process.

    Attributes
    ----------
    address : str
        Of its page.
    """

    def __init__(self, server: Server, height: int) -> None:
        self._server, self._height = server, height
        self.address = server.address + (f"#/b/{server.batches.next}" if server.batches else fragment("~0"))

    def close(self) -> None:
        """End the server."""
        self._server.close()

    def __repr__(self) -> str:
        return f"<viewer at {self.address}>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{self.address}" width="100%" height="{self._height}" style="border:0"></iframe>'
            f'<p><a href="{self.address}" target="_blank" rel="noreferrer">open in a tab</a></p>'
        )


def show(shown: Dataset | GivesBatches, *, height: int = 720, port: int = 0) -> Shown:
    """Show a dataset, a selection or a loader in the frame of a notebook, see `Dataset.view` and `Loader.view`."""
    from rlds_cli.dataset import Dataset

    server = Server([shown], port=port, in_frames=True) if isinstance(shown, Dataset) else None
    if server is None:
        server = Server(port=port, in_frames=True, loader=cast("GivesBatches", shown))
    return Shown(server.start(), height)
