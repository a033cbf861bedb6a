"""The viewer: other users of the machine, pages of other sites, and datasets of strangers that it shows."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from urllib.parse import quote, urlencode, urlsplit

from datasets import manifest
from scene import SECRET, Scene, attacks

ATTACKS, attack = attacks()

ID = "sample/pendulum-d4rl"
# Every address that docs/reference/view-interface.md describes, with the parameters that it takes.
ADDRESSES: Mapping[str, tuple[str, ...]] = {
    "api/about": (),
    "api/home": (),
    "api/dataset": ("d", "v"),
    "api/changed": ("d",),
    "api/episodes": ("d", "v", "where", "sort", "descending", "first", "count"),
    "api/columns": ("d", "v", "where"),
    "api/episode": ("d", "v", "episode"),
    "api/step": ("d", "v", "episode", "step"),
    "api/decisions": ("d", "v", "episode", "by"),
    "api/queue": ("d", "v", "where", "sort", "descending", "order", "seed", "of", "by", "first", "count"),
    "api/plan": ("d", "v", "field"),
    "media/decisions": ("d", "v"),
    "api/curves": ("d", "v", "episode", "field", "first", "stop", "width"),
    "media/frame": ("d", "v", "episode", "step", "field", "height", "low", "high"),
    "media/video": ("d", "v", "field", "video"),
}
USUAL = {"d": ID, "episode": "0", "step": "0", "field": "observation", "first": "0", "stop": "9", "width": "5"}
NUMBERS = ("-1", "999999999999999999", "1e9", "nan", "inf", "0x10", "", " 1", "１", "9" * 400, "1_0", "%00")
PATHS = ("/etc/passwd", "../../key", "file:///etc/passwd", "~/key", "~0", "~99999999999999999999", "sample/../sample/x")
TEXTS = (
    *("__import__('os').system('id')", "episode.__class__", "().__class__", "length " + "+ 1" * 900),
    *(
        "(" * 400,
        "9**9**9**9 > length",
        "'" * 3,
        "`",
        "\x00",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ),
    *("quantile(length, 2) > 1", "quantile('a', 0.5)", "length == " + "9" * 5000),
)


class Viewer:
    """Requests to a viewer that runs."""

    def __init__(self, scene: Scene, address: str) -> None:
        self.scene = scene
        self.parts = urlsplit(address)
        self.port, self.token = int(self.parts.port or 0), self.parts.path

    def ask(
        self,
        path: str,
        values: Mapping[str, str] | None = None,
        *,
        whole: bool = False,
        body: bytes | None = None,
        **how: str,
    ) -> tuple[int, bytes]:
        """Ask for a path below the token, or from the root on; record what no answer may hold."""
        query = f"?{urlencode(values)}" if values else ""
        target = (path if whole else self.token + path) + query
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in how.items() if name != "method"}
        try:
            connection.request(how.get("method", "GET"), target, body=body, headers=headers)
            answer = connection.getresponse()
            body = answer.read(64 << 20)
        except (OSError, http.client.HTTPException) as e:
            self.scene.fault(f"{target[:200]}: {type(e).__name__}: {e}")
            return 0, b""
        finally:
            connection.close()
        if SECRET.encode() in body or b"root:x:0" in body:
            self.scene.fault(f"{target[:200]} gives a file of the user's away")
        if b"Traceback" in body or b"The viewer failed" in body:
            self.scene.fault(f"{target[:200]}: {answer.status}: {body[-200:]!r}")
        if answer.status == 503:  # too many at once
            return answer.status, body
        if answer.getheader("content-security-policy") is None or answer.getheader("set-cookie") is not None:
            self.scene.fault(f"{target[:200]}: without the policy, or with a cookie")
        return answer.status, body

    def change(self, path: str, body: object, **how: str) -> tuple[int, bytes]:
        """Ask for a change as the page does, but for ``how``; an empty header is left out."""
        own = {"Origin": f"http://127.0.0.1:{self.port}", "Sec_Fetch_Site": "same-origin"}
        headers = {n: v for n, v in (own | {"Content_Type": "application/json"} | how).items() if v}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask(f"api/{path}", {"d": ID}, body=data, method="POST", **headers)

    def answers(self) -> bool:
        """Whether it answers within ten seconds: connections that were given up count until it has seen them."""
        for _ in range(100):
            if self.ask("api/about")[0] == 200:
                return True
            time.sleep(0.1)
        return False


def _wrong(name: str) -> Iterator[str]:
    """Values that a parameter should not have."""
    yield from NUMBERS if name not in ("d", "field", "where", "sort", "by") else ()
    yield from PATHS if name in ("d", "field", "sort") else ()
    yield from TEXTS if name in ("where", "sort", "field", "order", "by") else ()


@attack(quick=True)
def without_the_address(scene: Scene) -> None:
    """Whoever does not know the token, from this machine, from a page of another site, by another name."""
    with scene.serving("view", ID, "--no-open") as (_, address):
        viewer = Viewer(scene, address)
        own = f"http://127.0.0.1:{viewer.port}"
        for path in (
            "/",
            "/api/home",
            "/api/about",
            f"/{'x' * 32}/api/home",
            "/pages/main.js",
            viewer.token[:-2],
            "/../",
        ):
            if viewer.ask(path, whole=True)[0] != 404:
                scene.fault(f"{path} is answered without the token")
        foreign = (
            {"Host": "attacker.example"},
            {"Host": f"attacker.example:{viewer.port}"},
            {"Host": "127.0.0.1.attacker.example"},
            {"Origin": "http://attacker.example"},
            {"Origin": "null"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site", "Origin": own},
            {"method": "POST", "Origin": own},
            {"method": "DELETE"},
            {"method": "OPTIONS", "Origin": "http://attacker.example", "Access_Control_Request_Method": "GET"},
        )
        for how in foreign:
            status, body = viewer.ask("api/home", **how)
            if status not in (403, 405, 421) or b"pendulum" in body:
                scene.fault(f"a request with {how} is answered with {status}")
        with socket.socket() as outside:  # only the loopback interface is bound
            outside.settimeout(2)
            name = socket.gethostbyname(socket.gethostname())
            if not name.startswith("127.") and outside.connect_ex((name, viewer.port)) == 0:
                scene.fault(f"{name} answers")


@attack(quick=True)
def parameters(scene: Scene) -> None:
    """Every parameter of every address with values that it should not have."""
    with scene.serving("view", ID, "--no-open") as (process, address):
        viewer = Viewer(scene, address)
        for path, names in ADDRESSES.items():
            if path == "api/changed":
                names = ("d",)
            usual = {n: USUAL[n] for n in names if n in USUAL}
            for name in names:
                for value in _wrong(name):
                    viewer.ask(path, usual | {name: value})
            viewer.ask(path, {})
            viewer.ask(path, usual, Range="bytes=0-0," * 1000 + "1-1", If_None_Match='"' * 9000)
        viewer.ask("pages/" + quote("../app.py", safe=""))
        viewer.ask("pages/../app.py")
        if not process.runs or not viewer.answers():
            scene.fault("the viewer does not answer any more")


def _decided(scene: Scene) -> int:
    """Count the records of journals of decisions in the home."""
    files = (scene.home / "decisions").glob("*.jsonl")
    return sum(max(0, file.read_bytes().count(b"\n") - 1) for file in files)


@attack(quick=True)
def changes(scene: Scene) -> None:
    """Changes that pages of others ask for, bodies of any size and kind, ids that are none, texts with markup."""
    with scene.serving("view", ID, "--no-open") as (process, address):
        viewer = Viewer(scene, address)
        from rlds_cli import open_dataset

        id = open_dataset(str(scene.dataset)).episodes["id"][0].tobytes().hex()
        good = {"by": "ann", "episodes": [{"id": id, "decisions": [{"do": "drop"}]}]}
        foreign = (
            *(
                {"Origin": ""},
                {"Origin": "null"},
                {"Origin": "http://attacker.example"},
                {"Origin": "http://localhost:1"},
            ),
            *({"Sec_Fetch_Site": ""}, {"Sec_Fetch_Site": "none"}, {"Sec_Fetch_Site": "cross-site"}),
            *({"Content_Type": ""}, {"Content_Type": "text/plain"}, {"Content_Type": "multipart/form-data"}),
            *({"Host": "attacker.example"}, {"Transfer_Encoding": "chunked"}),
        )
        for path, how in itertools.product(("decide", "undo", "apply"), foreign):
            status, _ = viewer.change(path, good, **how)
            if status not in (400, 403, 411, 415, 421):
                scene.fault(f"{path} with {how} is answered with {status}")
        bodies = (
            b"",
            b"[]",
            b"{",
            b"[" * 500_000,
            b"9" * 900_000,
            b"\xff" * 99,
            b'{"by": 1e999}',
            b'{"by": "\\ud800"}',
        )
        for path, body in itertools.product(("decide", "undo", "apply"), bodies):
            if viewer.change(path, body)[0] not in (404, 422):
                scene.fault(f"{path} with {body[:20]!r} is not refused")
        if viewer.change("decide", b" " * (2 << 20))[0] not in (0, 413):
            scene.fault("a body of 2 MiB is read")
        wrong = [
            {"id": x, "decisions": [{"do": "drop"}]}
            for x in (*PATHS, *TEXTS, "0" * 32, id.upper(), id[:-1], 7, None, [id])
        ]
        said = [{"do": "exec"}, {"do": "keep", "first": -1, "stop": 1}, {"do": "keep", "first": 0, "stop": 1 << 60}]
        said += [{"labels": {x: "1"}} for x in (*PATHS, "__class__", "length", "id")]
        said += [{"labels": {"quality": x}} for x in ("1", 1.5, True, 1 << 70, [1], {"a": 1})]
        said += [
            {"by": "eve"},
            {"reviews": "x"},
            {"comment": "x" * 5000},
            {"do": "subtask", "first": 0, "stop": 1, "text": 3},
        ]
        wrong += [{"id": id, "decisions": [x]} for x in said]
        for one in wrong:
            if viewer.change("decide", {"by": "ann", "episodes": [one]})[0] != 422:
                scene.fault(f"{str(one)[:200]} is not refused")
        for name in (*PATHS, *TEXTS, "a/b", "..", "x" * 300, 5, None, "@", "~0"):
            if viewer.change("apply", {"as": name, "revision": 0})[0] not in (409, 422):
                scene.fault(f"a dataset is made as {str(name)[:80]}")
        if count := _decided(scene):
            scene.fault(f"{count} decisions were kept of requests that were refused")
        markup = "<img src=x onerror=alert(1)>"
        kept = {"by": markup, "episodes": [{"id": id, "decisions": [{"labels": {"note": markup}, "comment": markup}]}]}
        if viewer.change("decide", kept)[0] != 200 or _decided(scene) != 1:
            scene.fault("a decision with markup is not kept")
        if not process.runs or not viewer.answers():
            scene.fault("the viewer does not answer any more")


@attack()
def datasets_of_strangers(scene: Scene) -> None:
    """Names and texts with markup, and documents and rows that lie, of a dataset that is shown."""
    changes = (
        lambda m: m.update(env={"id": "<img src=x onerror=alert(1)>" * 99}),
        lambda m: m["facts"].update(description="</script><script>alert(1)</script>" * 9999),
        lambda m: m["fields"][0].update(name="observation/\u202e<b>"),
        lambda m: m["fields"][0].update(shape=[1 << 40]),
        lambda m: m["counts"].update(episodes=1 << 50),
        lambda m: m.update(notes=[{"code": "x", "text": "<i>" * 100_000, "severity": "error"}] * 99),
    )
    for change in changes:
        original = (scene.dataset / "zarr.json").read_text()
        manifest(scene.dataset, change)
        _everything(scene)
        (scene.dataset / "zarr.json").write_text(original)
    for file in sorted(p for p in scene.dataset.rglob("*") if p.is_file() and p.parent.name in ("c", "0"))[:40]:
        data = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(data[: len(data) // 2])
        _everything(scene)
        file.write_bytes(bytes(255 - b for b in data[:4096]) + data[4096:])
        _everything(scene)
        file.write_bytes(data)


def _everything(scene: Scene) -> None:
    """Ask for all that a page would of the dataset; a refusal is a record, and the viewer goes on."""
    with scene.serving("view", "--no-open") as (process, address):
        viewer = Viewer(scene, address)
        for path, names in ADDRESSES.items():
            status, body = viewer.ask(path, {n: USUAL[n] for n in names if n in USUAL})
            if path.startswith("api/") and status >= 400 and "error" not in json.loads(body or b"{}"):
                scene.fault(f"{path}: {status} without a reason")
        if not process.runs:
            scene.fault("the viewer ended")


@attack()
def many_at_once(scene: Scene) -> None:
    """More connections than it answers, half requests, and requests that are given up."""
    with scene.serving("view", ID, "--no-open") as (process, address):
        viewer = Viewer(scene, address)
        connections = []
        for k in itertools.count():
            if k == 300:
                break
            one = socket.create_connection(("127.0.0.1", viewer.port), timeout=5)
            one.sendall(f"GET {viewer.token}api/home HTTP/1.1\r\nHost: localhost\r\n".encode() + b"\r\n" * (k % 2))
            connections.append(one)
        for one in connections:
            one.close()
        long = socket.create_connection(("127.0.0.1", viewer.port), timeout=20)
        with suppress(OSError):  # it is closed before all was sent
            long.sendall(b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)
        long.close()
        if not process.runs or not viewer.answers():
            scene.fault("the viewer does not answer any more")
