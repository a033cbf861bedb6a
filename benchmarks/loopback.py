"""A loopback server for one file, in a process of its own: ranges, and connections that are interrupted at random.

python benchmarks/loopback.py FILE [SHARE [RATE]]     prints its URL; serves until its stdin is closed

SHARE of the answers are interrupted within their first half; a connection gets RATE bytes a second.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread

_STEP = 1 << 20
MARK = '"mark"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    file: Path
    share = 0.0
    rate = 0
    sent = requests = 0
    lock = Lock()

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/sent":
            return self._say()
        size = self.file.stat().st_size
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = (int(match[1]), min(size, int(match[2] or size - 1) + 1)) if match else (0, size)
        self.send_response(206 if match else 200)
        self.send_header("ETag", MARK)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - start))
        if match:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        return self._send(start, end)

    def _send(self, start: int, end: int) -> None:
        """The bytes; at most half of them if the connection is to be interrupted."""
        breaks = random.random() < self.share
        stop = random.randrange(start, (start + end) // 2 + 1) if breaks else end
        with self.file.open("rb") as f:
            done = 0
            try:
                while done < stop - start:
                    done += self.connection.sendfile(f, start + done, min(_STEP, stop - start - done))
                    time.sleep(_STEP / self.rate if self.rate else 0)
            except ConnectionError:  # whoever asked has enough
                breaks = True
        with self.lock:
            Handler.sent += done
            Handler.requests += 1
        self.close_connection = breaks

    def _say(self) -> None:
        body = json.dumps({"sent": Handler.sent, "requests": Handler.requests}).encode()
        Handler.sent = Handler.requests = 0
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    Handler.file, Handler.share, Handler.rate = Path(sys.argv[1]), *map(float, [*sys.argv[2:], 0, 0][:2])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}/file.bin", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
