"""A random history at addresses: every version that was pushed is what a list of episodes says, whoever is killed.

Usage: python tests/contract/address_history.py SEED DIRECTORY [--steps N]

Datasets change as in `versions_history`, and versions of them are pushed to a directory or to a bucket on this machine,
which a web server gives out as well. Servers cut connections, answer with errors, and send short and wrong bodies.
Pushes, downloads, collections and readers are killed. Objects rot, and pushes mend them. Several processes read one
home at a time, with small caches, while blocks are evicted; one of them belongs to another user of that home.

All that concerns an address happens in child processes: the program itself has no threads while it forks.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, Self

import numpy as np
from object_store import Fault, ObjectStore
from versions_history import STRANGER, History, begin, give_up_root
from versions_kills import run
from versions_model import Episode, check, check_batches

import rlds_cli
from rlds_cli.base.files import child
from rlds_cli.base.http.client import RetryPolicy
from rlds_cli.dataset import named_versions
from rlds_cli.errors import DatasetNotFound, DownloadFailed, RldsError, UploadFailed, WrongHash
from rlds_cli.keep import gc as garbage
from rlds_cli.keep.verification import verify
from rlds_cli.share import collecting

HASTY = RetryPolicy(attempts=5, first=0.001, longest=0.01, asked=5.0, connect=60.0, read=60.0, idle=120.0)
FAULTS = {"GET": ("reset", "500", "503", "short", "other", "lost", "long"), "PUT": ("reset", "500", "lost")}
CACHES = (None, "256KiB", "1MiB", 0)
HANGS = 120.0  # seconds after which a child is said to hang
BUCKET = "s3://lab"


class Flaky(ObjectStore):
    """A store at which a part of all requests goes wrong."""

    share: Synchronized[float]

    def fault(self, method: str, path: str) -> Fault | None:
        kinds = FAULTS.get(method)
        if kinds is None or random.random() >= self.share.value:
            return None
        return Fault(random.choice(kinds), method)


class Served:
    """A flaky store in a process of its own; a context manager. ``share`` is the part of requests that go wrong."""

    def __init__(self) -> None:
        context = get_context("fork")
        self.share = context.Value("d", 0.0)
        self._receive, send = context.Pipe(duplex=False)
        self._process = context.Process(target=self._serve, args=(send,), daemon=True)

    def _serve(self, send: Any) -> None:
        with Flaky() as store:
            store.share = self.share
            store.buckets["lab"] = {}
            send.send(store.url)
            signal.pause()

    def __enter__(self) -> Self:
        self._process.start()
        self.url = self._receive.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


@dataclass
class Child:
    """A process that works; `result` returns what its function did, None if it was killed."""

    pid: int
    pipe: int

    def result(self, *, kill_after: float | None = None) -> Any:
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(self.pid, signal.SIGKILL)
        with os.fdopen(self.pipe, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(self.pid, 0)[1]
        if not said:
            assert kill_after is not None, f"a process ended with {status}, or worked for {HANGS:.0f} s"
            return None
        value, error = pickle.loads(said)
        if error:
            sys.stderr.write(error)
        if isinstance(value, BaseException):
            raise value
        return value


def start(work: Callable[[], Any], *, stranger: bool = False) -> Child:
    """Call a function in a child, which may belong to another user than the files of this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader)
    try:
        signal.alarm(int(HANGS))
        if stranger:
            give_up_root()
        try:
            said = work(), ""
        except RldsError as e:
            said = e, ""
        except BaseException as e:
            said = AssertionError(repr(e)), traceback.format_exc()
        os.write(writer, pickle.dumps(said))
    finally:
        os._exit(0)


def away(work: Callable[[], Any]) -> Any:
    """Return what a function does in a child."""
    return start(work).result()


@dataclass
class Addresses:
    """What was pushed: by address, the episodes of each version.

    ``far`` is the home of who reads; ``faults`` counts what failed since servers did.
    """

    history: History
    served: Served
    place: Path
    there: dict[str, dict[int, list[Episode]]] = field(default_factory=dict)
    tags: dict[str, dict[str, int]] = field(default_factory=dict)
    typical: float = 0.3  # seconds of a push
    count: int = 0
    kills: int = 0
    faults: int = 0

    @property
    def rng(self) -> np.random.Generator:
        return self.history.rng

    @property
    def far(self) -> Path:
        return self.place / "far"

    def step(self) -> None:
        """Do one thing, with servers that fail or not."""
        self.served.share.value = 0.0 if self.rng.random() < 0.3 else 0.04
        act = ("push", "push", "push_at_once", "read", "read", "pull", "collect", "rot")[self.rng.integers(8)]
        if not self.there and act in ("read", "pull", "collect", "rot"):
            act = "push"
        if act.startswith("push") and self.rng.random() < 0.6:
            self.history.step()
        self.history.done.append(act)
        getattr(self, act)()

    def _some(self) -> str:
        return sorted(self.there)[self.rng.integers(len(self.there))]

    def _base(self) -> str:
        return (str(self.place / "store"), BUCKET)[self.rng.integers(2)]

    def _of(self, base: str, id: str) -> str:
        return f"{base}/{id.replace('/', '-').replace('@', '-')}"

    # -- pushes

    def push(self) -> None:
        """Push a version, often the newest one, by a process that may be killed; then again."""
        known, base = self.history.known, self._base()
        id = sorted(known)[self.rng.integers(len(known))]
        numbers = sorted(known[id])
        number = numbers[-1] if self.rng.random() < 0.6 else numbers[self.rng.integers(len(numbers))]
        to, work = self._of(base, id), self._pushing(base, id, number)
        if self.rng.random() < 0.5:
            if base == BUCKET:
                start(work).result(kill_after=self.rng.uniform(0, 1.2) * self.typical)
                self.kills += 1
            else:
                self.kills += run(work, int(2 ** self.rng.uniform(0, 8)), str(self.place)) == 0
            found = self._listed(to)
            assert set(found) - {number} <= set(self.there.get(to, {})), "a version that nobody pushed"
            assert set(self.there.get(to, {})) <= set(found) | {number}, "a version is missing"
            self._look(to, number if number in found else None, id)
        began = time.monotonic()
        self._steadily(work)
        self.typical = time.monotonic() - began
        self._pushed(id, to, number)

    def rot(self) -> None:
        """An object in a directory is lost, or a byte of it changes; pushes of all versions mend it."""
        store = str(self.place / "store")
        places = [(id, to) for id in sorted(self.history.known) if (to := self._of(store, id)) in self.there]
        if not places:
            return
        id, to = places[self.rng.integers(len(places))]
        files = sorted(Path(to, "objects").iterdir())
        file = files[self.rng.integers(len(files))]
        data = bytearray(file.read_bytes())
        file.unlink()
        if self.rng.random() < 0.7:
            data[self.rng.integers(len(data))] ^= 1
            file.write_bytes(data)
        damaged: tuple[int, ...] = ()
        for number in sorted(self.there[to]):
            work = lambda n=number: rlds_cli.push(f"{id}#v{n}", to, pages=False, verify=True).damaged  # noqa: E731
            damaged = self._steadily(work)
            self._pushed(id, to, number)
        assert damaged == (), "pushes of all versions leave damage"
        for number, episodes in self.there[to].items():
            home = self._fresh()
            self._steadily(self._downloading(f"{_url(to)}#v{number}", episodes, home))
            shutil.rmtree(home)

    def push_at_once(self) -> None:
        """Two processes push two versions to one address."""
        known, base = self.history.known, self._base()
        id = sorted(known)[self.rng.integers(len(known))]
        numbers = self.rng.permutation(sorted(known[id]))[:2].tolist()
        both = [(n, start(self._pushing(base, id, n))) for n in numbers]
        for number, process in both:
            try:
                process.result()
            except (UploadFailed, DownloadFailed, WrongHash):
                self.faults += 1
                self._steadily(self._pushing(base, id, number))
            self._pushed(id, self._of(base, id), number)

    def _pushing(self, base: str, id: str, number: int) -> Callable[[], Any]:
        return lambda: rlds_cli.push(f"{id}#v{number}", self._of(base, id), pages=False).id

    def _pushed(self, id: str, to: str, number: int) -> None:
        self.there.setdefault(to, {})[number] = self.history.known[id][number]
        named = {name: n for name, n in self.history.tags.get(id, {}).items() if n in self.there[to]}
        self.tags[to] = {n: v for n, v in self.tags.get(to, {}).items() if v in self.there[to]} | named

    def _listed(self, to: str) -> dict[int, str]:
        """Return the versions at an address; empty if there is none."""

        def work() -> dict[int, str]:
            try:
                found = named_versions(to)
            except DatasetNotFound:
                return {}
            return {v.number: v.fingerprint for v in found}

        found: dict[int, str] = self._steadily(work)
        return found

    def _look(self, to: str, number: int | None, id: str) -> None:
        """Download a version after a kill."""
        if number is not None:
            self._steadily(self._downloading(f"{_url(to)}#v{number}", self.history.known[id][number], self._fresh()))

    def _steadily(self, work: Callable[[], Any]) -> Any:
        """Do something that may fail if servers do, and then succeeds where they do not."""
        try:
            return away(work)
        except (UploadFailed, DownloadFailed, WrongHash):
            assert self.served.share.value, "nothing went wrong at the server"
            self.faults += 1
            self.served.share.value = 0.0
            return away(work)

    # -- downloads and readers

    def _fresh(self) -> Path:
        self.count += 1
        return self.place / f"home{self.count}"

    def _downloading(self, ref: str, episodes: list[Episode], home: Path) -> Callable[[], None]:
        def work() -> None:
            ds = rlds_cli.download(ref, name="local/came", home=home, force=True)
            check(ds, episodes)
            assert not verify("local/came", home=home).problems

        return work

    def pull(self) -> None:
        """Download a version in a process that is killed; what is there is whole, and a second try ends."""
        ref, episodes = self._ref()
        home = self._fresh()

        def whole() -> None:
            try:
                ds = rlds_cli.open_dataset("local/came", home=home)
            except DatasetNotFound:
                return
            check(ds, episodes)
            assert not verify("local/came", home=home).problems

        for _ in range(2):
            self.kills += run(self._downloading(ref, episodes, home), int(2 ** self.rng.uniform(0, 8)), str(home)) == 0
            away(whole)
        self._steadily(self._downloading(ref, episodes, home))
        shutil.rmtree(home)

    def _ref(self) -> tuple[str, list[Episode]]:
        """Return a reference to something at an address: a version, a tag, a fingerprint, or the newest."""
        to = self._some()
        every, tags = self.there[to], self.tags.get(to, {})
        number = sorted(every)[self.rng.integers(len(every))]
        at = f"{self._web(to)}" if to.startswith(BUCKET) and self.rng.random() < 0.5 else _url(to)
        kind = self.rng.integers(4)
        if kind == 0 and tags:
            name = sorted(tags)[self.rng.integers(len(tags))]
            return f"{at}#{name}", every[tags[name]]
        if kind == 1:
            return at, every[max(every)]
        if kind == 2:
            return f"{at}#{self._listed(to)[number]}", every[number]
        return f"{at}#v{number}", every[number]

    def _web(self, to: str) -> str:
        """Return the address of a bucket's dataset at its web server."""
        return f"{self.served.url}/lab{to.removeprefix(BUCKET)}/"

    def read(self) -> None:
        """Several processes read several versions in one home, while blocks leave; some are killed, one is a guest."""
        guest = os.geteuid() == 0 and sys.platform == "linux" and self.rng.random() < 0.4
        if guest:
            self._give_away(STRANGER)
        children = [(self._reading(), self.rng.random() < 0.3) for _ in range(3)]
        evicting = start(self._evict)
        started = [(start(work, stranger=guest and k == 0), killed) for k, (work, killed) in enumerate(children)]
        for process, killed in started:
            try:
                process.result(kill_after=self.rng.uniform(0, 0.5) if killed else None)
            except (DownloadFailed, WrongHash):
                assert self.served.share.value, "nothing went wrong at the server"
                self.faults += 1
            self.kills += killed
        evicting.result()
        if guest:
            self._give_away(os.geteuid())

    def _reading(self) -> Callable[[], None]:
        ref, episodes = self._ref()
        cache, seed = CACHES[self.rng.integers(len(CACHES))], int(self.rng.integers(1 << 30))

        def work() -> None:
            try:
                ds = rlds_cli.open_dataset(ref, home=self.far, cache=cache)
            except RldsError as e:
                if "images" not in str(e) and "frames" not in str(e):
                    raise
                return  # of a growing dataset: they are downloaded, see `pull`
            check(ds, episodes)
            check_batches(ds, episodes, seed)

        return work

    def _evict(self) -> None:
        for _ in range(3):
            garbage.collect(garbage.find_garbage(remote=True, home=self.far))
            time.sleep(0.05)

    def _give_away(self, user: int) -> None:
        """Have the home of who reads, which all users may write to, belong to a user."""
        self.far.mkdir(exist_ok=True)
        self.far.chmod(0o1777)
        for path in (self.far, *self.far.rglob("*")):
            if f"remote.{os.geteuid()}" not in path.parts:  # of the guest
                os.chown(path, user, -1, follow_symlinks=False)

    # -- removal

    def collect(self) -> None:
        """Remove versions from an address in a process that may be killed: what is listed is whole."""
        to, last = self._some(), int(self.rng.integers(1, 3))
        work = lambda: collecting.collect(to, keep_last=last).objects  # noqa: E731
        every = self.there[to]
        kept = {*sorted(every)[-last:], *self.tags.get(to, {}).values()}
        if self.rng.random() < 0.5:
            if to.startswith(BUCKET):
                start(work).result(kill_after=self.rng.uniform(0, 0.3))
            else:
                run(work, int(2 ** self.rng.uniform(0, 6)), str(self.place))
            self.kills += 1
            found = self._listed(to)
            assert kept <= set(found) <= set(every)
            for number in found:
                self._steadily(self._downloading(f"{_url(to)}#v{number}", every[number], self._fresh()))
        self._steadily(work)
        self.there[to] = {n: e for n, e in every.items() if n in kept}

    def end(self) -> None:
        """Every version at every address is what it was."""
        self.served.share.value = 0.0
        for to, every in self.there.items():
            assert set(self._listed(to)) == set(every)
            for number, episodes in every.items():
                away(self._downloading(f"{_url(to)}#v{number}", episodes, self._fresh()))


def _url(to: str) -> str:
    return to if to.startswith(BUCKET) else f"file://{to}"


def main(seed: int, place: Path, steps: int) -> None:
    """Live through one history."""
    import rlds_cli.places.remote.content
    import rlds_cli.places.sources.objects
    from rlds_cli.make.convert import writer

    rlds_cli.places.sources.objects.POLICY = rlds_cli.places.remote.content.POLICY = HASTY
    writer._INTERVAL = 600.0
    os.fsync = lambda fd: None
    random.seed(seed)
    with Served() as served, child.here():
        keys = ObjectStore().environ(place / "home")
        os.environ |= {k: v for k, v in keys.items() if "HOME" not in k} | {"AWS_ENDPOINT_URL": served.url}
        at = Addresses(begin(seed, place), served, place)
        try:
            for _ in range(steps):
                at.step()
            at.end()
        except BaseException:
            print(*at.history.done, sep="\n")
            raise
        print(f"{len(at.there)} addresses, {at.kills} kills, {at.faults} failures of servers that were said")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    main(given.seed, given.directory, given.steps)
