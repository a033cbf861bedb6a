"""TLS, proxies and tokens: what is verified, what goes where, and what nobody can turn off without noticing."""

from __future__ import annotations

import hashlib
import random
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from object_store import UNSIGNED, ObjectStore
from server import Server
from test_transfer_fetching import HASTY, Place, wanted

from rlds_cli.base.http.connections import StallDetector
from rlds_cli.errors import DownloadFailed
from rlds_cli.places import Address, Body, RemoteFile, open_objects
from rlds_cli.places.files.parts import PartFile
from rlds_cli.places.sources import buckets

CONTENT = b"0123456789abcdef" * 10_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    return Place(tmp_path, server.settings(tmp_path))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Self-signed, for 127.0.0.1; its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    where = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"]
    subprocess.run(["openssl", *request.split(), *where], check=True, capture_output=True)
    return tmp_path / "cert.pem"


@pytest.fixture
def https(certificate: Path) -> Iterator[Server]:
    with Server() as running:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        running.encrypt(context)
        yield running


def test_a_certificate_that_nobody_vouches_for_is_refused(
    https: Server, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = https.add("/d/x.h5", CONTENT)
    for name, value in (("PYTHONHTTPSVERIFY", "0"), ("CURL_CA_BUNDLE", ""), ("REQUESTS_CA_BUNDLE", "")):
        monkeypatch.setenv(name, value)
    with pytest.raises(DownloadFailed, match=r"its certificate is not trusted \(self-signed certificate"):
        place.fetch(wanted(https, sha256=SHA256))
    assert page.requests == [] and place.names() == set()


@pytest.mark.thorough
def test_other_authorities_are_used_and_said(
    https: Server, place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        https.add(f"/d/{name}.h5", CONTENT)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    place.fetch(wanted(https, "/d/a.h5"), wanted(https, "/d/b.h5"))
    (note,) = place.notes("note")
    assert note.startswith("the server's certificate was verified with the authorities of") and str(certificate) in note


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A store that speaks HTTPS, with a certificate of an authority that this process trusts."""
    pytest.importorskip("obstore")
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    (tmp_path / "ends").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    for command in (
        f"req -x509 {key} -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {key} -subj /CN=127.0.0.1 -keyout key.pem -out request.pem",
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ends -out cert.pem",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with ObjectStore() as running:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        running.encrypt(context)
        running.buckets["lab"] = {}
        yield running


@pytest.mark.parametrize("hashes", ["are not signed", "are signed where a policy wants it"])
def test_hashes_of_large_files_over_tls(hashes: str, bucket: ObjectStore, tmp_path: Path) -> None:
    large = random.Random(0).randbytes(3 * buckets.PART)
    if "policy" in hashes:
        bucket.hashed.add("lab")
    with open_objects(Address.parse("s3://lab/x"), bucket.settings(tmp_path / "home")) as objects:
        objects.put("objects/large", Body.of(large))
        objects.replace("rlds.json", b"small", None)
    assert bucket.buckets["lab"] == {"x/objects/large": large, "x/rlds.json": b"small"}
    signed = {r.path.partition("?")[0]: r.headers["x-amz-content-sha256"] for r in bucket.requests if r.size}
    assert (signed["/lab/x/objects/large"] == UNSIGNED) == ("policy" not in hashes)
    assert signed["/lab/x/rlds.json"] == hashlib.sha256(b"small").hexdigest()


def test_without_tls_all_hashes_are_signed(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with ObjectStore() as store:
        store.buckets["lab"] = {}
        with open_objects(Address.parse("s3://lab/x"), store.settings(tmp_path / "home")) as objects:
            objects.put("objects/large", Body.of(bytes(3 * buckets.PART)))
        part = hashlib.sha256(bytes(buckets.PART)).hexdigest()
        assert [r.headers["x-amz-content-sha256"] for r in store.requests if "partNumber" in r.path] == [part] * 3


def test_a_file_of_authorities_that_is_not_there(https: Server, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    https.add("/d/x.h5", CONTENT)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere/bundle.pem")
    with pytest.raises(DownloadFailed, match=r"/nowhere/bundle\.pem"):
        place.fetch(wanted(https))


def test_there_is_no_option_to_leave_verification_out() -> None:
    package = Path(__file__).parents[2] / "rlds_cli"
    assert not [
        p for p in package.rglob("*.py") if "verify=False" in p.read_text() or "insecure" in p.read_text().lower()
    ]


@pytest.mark.thorough
def test_plain_http_without_a_hash_is_said_once(server: Server, place: Place) -> None:
    for name in "abc":
        server.add(f"/d/{name}.h5", CONTENT)
    place.fetch(*(wanted(server, f"/d/{name}.h5") for name in "ab"), wanted(server, "/d/c.h5", sha256=SHA256))
    (note,) = place.notes("note")
    assert note.startswith("comes over plain HTTP, and no hash of it is published")


def test_a_redirect_from_https_to_plain_http_is_refused(
    https: Server, server: Server, place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    altered = server.add("/x.h5", CONTENT)
    https.add("/d/x.h5", b"", redirect=f"{server.url}/x.h5")
    with pytest.raises(DownloadFailed, match="leads from HTTPS to plain HTTP"):
        place.fetch(wanted(https))
    assert altered.requests == []


@pytest.mark.thorough
def test_a_large_file_comes_in_large_blocks_over_tls(
    https: Server, place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    content = random.Random(3).randbytes(20 << 20)
    https.add("/d/x.h5", content)
    sizes: list[int] = []
    append = PartFile.append

    def measured(self: PartFile, block: bytes | memoryview) -> None:
        sizes.append(len(block))
        append(self, block)

    monkeypatch.setattr(PartFile, "append", measured)
    place.fetch(wanted(https, sha256=hashlib.sha256(content).hexdigest()))
    assert sum(sizes) == len(content)
    assert max(sizes) > 16 << 10  # a read over TLS gives 16 KiB


@pytest.mark.parametrize("other", ["host", "port"])
def test_a_redirect_to_another_host_does_not_take_the_token_along(server: Server, place: Place, other: str) -> None:
    with Server("127.0.0.2" if other == "host" else "127.0.0.1") as elsewhere:
        kept = elsewhere.add("/cdn/x.h5", CONTENT)
        first = server.add("/datasets/o/r/x.h5", b"", token="secret", redirect=f"{elsewhere.url}/cdn/x.h5")
        place.where = replace(place.where, hub_token="secret")
        place.fetch(wanted(server, "/datasets/o/r/x.h5", sha256=SHA256))
    assert first.requests[0].headers["Authorization"] == "Bearer secret"
    assert "Authorization" not in kept.requests[0].headers


def test_https_goes_through_a_tunnel_of_the_proxy(
    https: Server, server: Server, place: Place, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    https.add("/d/x.h5", CONTENT)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    (came,) = place.fetch(wanted(https, sha256=SHA256))
    assert came.path.read_bytes() == CONTENT
    assert server.asked == [f"CONNECT {https.host}"]


def test_a_proxy_that_wants_a_password_gets_it_and_nobody_reads_it(
    server: Server, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", server.url.replace("http://", "http://me:hunter2@"))
    page = server.add("/x.h5", CONTENT, statuses=[None, *[(407, {})] * 9])
    (came,) = place.fetch(RemoteFile("x.h5", ("http://archive.invalid/x.h5",)))
    assert page.requests[0].headers["Proxy-Authorization"].startswith("Basic ")
    assert "hunter2" not in came.path.with_name("x.h5.json").read_text()
    with pytest.raises(DownloadFailed, match="407") as caught:
        place.fetch(RemoteFile("y.h5", ("http://archive.invalid/x.h5",)))
    assert "hunter2" not in str(caught.value)


def test_a_trickle_is_a_stall(server: Server, place: Place) -> None:
    """16 KiB every 300 ms, so that no single read takes long; eight megabytes in a second are wanted."""
    page = server.add("/d/x.h5", CONTENT, pace=0.3)
    server.add("/m/x.h5", CONTENT)
    file = RemoteFile("x.h5", (f"{server.url}/d/x.h5", f"{server.url}/m/x.h5"), sha256=SHA256)
    policy = replace(HASTY, attempts=1, read=1.0, least=8 << 20)
    place.fetch(file, policy=policy)
    assert 0 < page.sent < len(CONTENT)
    assert place.record("x.h5")["url"].endswith("/m/x.h5")
    with pytest.raises(DownloadFailed, match=r"stalled: [\d.]+ KiB in 1 s"):
        place.fetch(replace(file, path="y.h5", urls=file.urls[:1]), policy=policy)


def test_the_floor_counts_only_time_spent_waiting() -> None:
    floor = StallDetector(100, 10.0)
    assert [floor.add(50, 4.0), floor.add(50, 4.0), floor.add(1, 4.0)] == [None, None, None]
    assert [floor.add(99, 9.9), floor.add(0, 0.2)] == [None, "stalled: 99 B in 10 s"]
