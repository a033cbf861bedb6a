"""Compare the batches of datasets on the disk with those from stores, while training is killed at random moments.

    python scripts/soak_remote.py [--steps 1000] [--kills 10] [--seed 0] [--datasets a,b] [--loaders x] [--stores s3]

Every dataset is pushed to a bucket, a hub and a directory, and read from there, and from the bucket by a web server
that lists nothing. For every loader the first batches are compared bit for bit: from the disk; from a store; and from
stores by processes that are killed with SIGKILL, each of which goes on from the state that the one before saved last,
at the disk or another store, with another size of the cache, and where the loader can with another number of ranks.
``--sample N`` takes N of all combinations by chance.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import pickle
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).parents[1] / "tests" / name) for name in ("support", "contract"))

import frames_data
import growing_model
import loader_data
import numpy as np
import torch  # now, not in each process
from hub_server import Hub
from lerobot_archives import Content, write_v3
from object_store import ObjectStore

import rlds_cli
from rlds_cli import preprocess
from rlds_cli.dataset import Dataset
from rlds_cli.dataset.transforms import Clip, Normalize, Reward
from rlds_cli.errors import RldsError
from rlds_cli.loader import (
    Episode,
    Goals,
    Loader,
    Member,
    Mixture,
    Offsets,
    Prioritized,
    ReturnToGo,
    Sequential,
    Shuffled,
    Slice,
    Transition,
    Uniform,
    Weighted,
)
from rlds_cli.make.importing import import_files

STEPS, KILLS, BATCH = 1000, 10, 16
STORES = ("s3", "web", "hub", "directory")
CACHES = (None, "3MiB", "40MiB", 0)
BESIDE = "local/beside"  # the other member of mixtures, always on the disk
_LOG = struct.Struct("<q16s")
_HANGS = 120.0  # seconds without a batch after which a process is said to hang


# -- datasets


def episodes(lengths: list[int], seed: int, **columns: Callable[[np.random.Generator, int], Any]) -> Iterator[Any]:
    """Yield episodes with flags, a reward and these columns of T or T+1 rows."""
    rng = np.random.default_rng(seed)
    for k, n in enumerate(lengths):
        plain = {name.replace("__", "/"): make(rng, n) for name, make in columns.items()}
        flags = {"terminated": k % 3 == 0, "truncated": k % 3 != 0, "reward": rng.standard_normal(n)}
        yield {**plain, "next": flags}


def floats(width: int, more: int = 1) -> Callable[[np.random.Generator, int], Any]:
    """Return a column of random float32."""
    return lambda rng, n: rng.standard_normal((n + more, width), np.float32)


def pixels(*shape: int) -> Callable[[np.random.Generator, int], Any]:
    """Return a column of random bytes."""
    return lambda rng, n: rng.integers(0, 256, (n + 1, *shape), np.uint8)


def numbers(rng: np.random.Generator, n: int) -> Any:
    """Discrete actions."""
    return rng.integers(0, 6, n)


def texts(rng: np.random.Generator, n: int) -> Any:
    """Return sentences of several lengths, some empty and some not of ASCII."""
    return ["", "go", "nach links, bitte", "右へ"][n % 4 :][:1] * n if n % 5 else [f"step {t}" for t in range(n)]


def varied(rng: np.random.Generator, count: int, longest: int) -> list[int]:
    """Return lengths of episodes."""
    return rng.integers(1, longest, count).tolist()


def made(name: str, lengths: list[int], seed: int = 0, storage: str = "memmap", **columns: Any) -> Dataset:
    """Write a dataset."""
    return rlds_cli.create(f"local/{name}", episodes(lengths, seed, **columns), force=True, storage=storage)


def lengths(count: int, longest: int) -> list[int]:
    """Return lengths of episodes that are the same at each call."""
    return varied(np.random.default_rng(count), count, longest)


def nested(name: str) -> Dataset:
    """Observations below a name, some of them of nothing."""
    return made(
        name,
        lengths(60, 200),
        observation__image=pixels(8, 8, 3),
        observation__state=floats(7),
        observation__nothing=lambda rng, n: np.zeros((n + 1, 0), np.float32),
        action__arm=floats(4, 0),
        action__gripper=numbers,
        info__where=floats(2, 0),
    )


def jpegs(name: str) -> Dataset:
    """Frames that are kept as JPEG."""
    film = frames_data.Film(lengths(12, 40), None)
    film.id = f"local/{name}"
    return frames_data.write(film)


def videos(name: str) -> Dataset:
    """MP4 with key frames."""
    content = Content(lengths=(40, 25, 33, 1, 9), video=("top",), splits={"train": "0:5"})
    with tempfile.TemporaryDirectory() as directory:
        return import_files(write_v3(Path(directory) / "a", content), f"local/{name}")


def pngs(name: str) -> Dataset:
    """Frames that are kept as PNG."""
    content = Content(lengths=(40, 25, 33, 2, 9), image=("top",), splits={"train": "0:5"})
    with tempfile.TemporaryDirectory() as directory:
        return import_files(write_v3(Path(directory) / "a", content), f"local/{name}")


def grown(name: str) -> Dataset:
    """Several segments and versions, of which some episodes left."""
    rng = np.random.default_rng(3)
    with rlds_cli.writer(f"local/{name}", fields=growing_model.FIELDS, keep=rlds_cli.Reservoir(episodes=300)) as w:
        for _ in range(8):
            w.add_episodes(growing_model.draw(rng, int(rng.integers(1, 60))).item() for _ in range(50))
            w.commit()
    return rlds_cli.open_dataset(f"local/{name}")


def derived(name: str) -> Dataset:
    """The result of a preprocess."""
    return preprocess.run(
        made(f"{name}-source", lengths(40, 300), observation=floats(20), action=floats(3, 0)),
        "normalise",
        "norm",
        jobs=1,
    )


def merged(name: str) -> Dataset:
    """Some episodes of two datasets, one of them compressed."""
    for k in (1, 2):
        storage = ("memmap", "zarr")[k - 1]
        columns = {"observation": floats(30), "action": numbers, "note": texts}
        made(f"{name}-{k}", lengths(30 * k, 200), k, storage=storage, **columns)
    return rlds_cli.merge([f"local/{name}-{k}" for k in (1, 2)], f"local/{name}")


def known(name: str, storage: str = "memmap") -> Dataset:
    """Episodes of every kind: final observations that are not known, terminals inside."""
    return loader_data.create(loader_data.varied() * 3, ref=f"local/{name}", storage=storage)


DATASETS: dict[str, Callable[[str], Dataset]] = {
    "flat": lambda name: made(name, lengths(100, 600), observation=floats(17), action=floats(6, 0)),
    "images": lambda name: made(name, lengths(20, 120), observation=pixels(32, 32, 3), action=numbers),
    "wide": lambda name: made(name, lengths(6, 20), observation=floats(20_000), action=numbers),
    "texts": lambda name: made(name, lengths(80, 90), observation=floats(5), action=numbers, note=texts),
    "nested": nested,
    "known": known,
    "jpegs": jpegs,
    "pngs": pngs,
    "videos": videos,
    "one": lambda name: made(name, [4_000], observation=floats(64), action=floats(2, 0)),
    "steps": lambda name: made(name, [1] * 3_000, observation=floats(40), action=numbers),
    "tiny": lambda name: made(name, lengths(8_000, 6), observation=floats(9), action=floats(2, 0)),
    "grown": grown,
    "compressed": lambda name: made(
        name, lengths(60, 400), storage="zarr", observation=pixels(60), action=floats(3, 0)
    ),
    "compressed-known": lambda name: known(name, "zarr"),
    "derived": derived,
    "merged": merged,
    "again": lambda name: made(name, lengths(50, 300), 9, observation=floats(40), action=floats(3, 0)),
}
BEFORE: dict[str, Callable[[str], Dataset]] = {  # what was pushed to the address earlier
    "again": lambda name: made(name, lengths(49, 300), 9, observation=floats(40), action=floats(3, 0)),
}


# -- loaders

Arguments = dict[str, Any]


def episode_weights(ds: Dataset) -> Any:
    """Return a weight for every episode."""
    return 1.0 + np.arange(ds.num_episodes) % 7


LOADERS: dict[str, Callable[[Dataset], Arguments]] = {
    "uniform": lambda ds: {"fields": "all"},
    "torch": lambda ds: {"backend": "torch", "prefetch": 3, "fields": [..., "step", "episode", "index"]},
    "episodes-first": lambda ds: {"sampler": Uniform(by="episode"), "fields": [..., "previous/action", "next/action"]},
    "warm-up": lambda ds: {"warm_up": "first_part", "fields": [..., "probability"]},
    "shuffled": lambda ds: {
        "sampler": Shuffled(),
        "window": Transition(n_step=5),
        "fields": [..., ReturnToGo(gamma=0.9)],
    },
    "blocks": lambda ds: {
        "sampler": Shuffled(block=50, live=3),
        "window": Slice(9, before=4, after=8, fill="zero"),
        "fields": "all",
    },
    "in-order": lambda ds: {"sampler": Sequential(), "dtype": None, "window": Transition(anchors="steps")},
    "weighted": lambda ds: {"sampler": Weighted(episode_weights(ds)), "window": Slice(5, after=4)},
    "by-step": lambda ds: {"sampler": Weighted(1.0 + np.arange(ds.num_steps) % 11)},
    "prioritized": lambda ds: {"sampler": Prioritized(), "window": Transition(n_step=3)},
    "whole": lambda ds: {"window": Episode(max_length=40), "sampler": Shuffled(), "prefetch": 2},
    "bucket": lambda ds: {"window": Episode(max_length=60, bucket=64), "sampler": Shuffled(), "fields": [..., "step"]},
    "goals": lambda ds: {
        "fields": [..., Goals("goal", current=0.2, future=0.5, random=0.3), Goals("near", horizon=3)],
        "sampler": Shuffled(),
    },
    "stacks": lambda ds: {"window": Offsets({"observation": (-3, -1, 0), "action": range(4)})},
    "transforms": lambda ds: {"transform": (Normalize(ds), Reward(2.0, -1.0), Clip("action", 0.5)), "window": Slice(4)},
    "mixture": lambda ds: {"mixture": True, "sampler": Shuffled()},
    "mixed-priorities": lambda ds: {"mixture": True, "sampler": Prioritized()},
    "ranks": lambda ds: {"ranks": True, "window": Slice(6, after=5)},
    "ranks-shuffled": lambda ds: {"ranks": True, "sampler": Shuffled(block=100), "fields": [..., "index"]},
    "workers": lambda ds: {"workers": 2, "backend": "torch", "sampler": Shuffled()},
    "selection": lambda ds: {"select": True, "window": Slice(3, after=2), "sampler": Shuffled()},
}


class Training:
    """A loader of a dataset, or several of them for ranks; gives global batches, and their state.

    Parameters
    ----------
    ds : Dataset
    name : str
        Of `LOADERS`.
    ranks : int
        Loaders that share each batch, if this kind of loader has ranks.
    near : Path
        The home with `BESIDE`.
    """

    def __init__(self, ds: Dataset, name: str, ranks: int, near: Path) -> None:
        arguments: Arguments = {"backend": "numpy", "seed": 11, **LOADERS[name](ds)}
        self.workers = arguments.pop("workers", 0)
        of: Any = ds.select(episodes=range(ds.num_episodes - 1, 0, -3)) if arguments.pop("select", False) else ds
        if arguments.pop("mixture", False):
            beside = rlds_cli.open_dataset(BESIDE, home=near)
            fields = ["next/reward", "next/terminated"]
            of = Mixture({"a": of, "b": Member(beside, transform=Reward(0.5))}, {"a": 2, "b": 1})
            arguments["fields"] = fields
        count = ranks if arguments.pop("ranks", False) else 1
        if arguments["backend"] == "numpy" or not self.workers:
            arguments.setdefault("prefetch", None)
        self.loaders = [Loader(of, BATCH, rank=r, world_size=count, **arguments) for r in range(count)]
        self.learns = isinstance(arguments.get("sampler"), Prioritized)
        self.drops = count > 1
        self.step = 0
        self._data: Any = None

    def state(self) -> Any:
        """Return what `load` takes."""
        if self.workers:
            return self.step
        return self.step, self.loaders[0].state_dict()

    def load(self, state: Any) -> None:
        """Go on from a state."""
        if self.workers:
            self.step = state
            self.loaders[0].seek(state)
            return
        self.step, saved = state
        for loader in self.loaders:
            loader.load_state_dict(saved)

    def __iter__(self) -> Iterator[bytes]:
        """Yield a hash of each batch, for ever."""
        while True:
            before = self.step
            for batches in self._pass():
                self.step += 1
                if self.learns:
                    self._learn(batches[0])
                yield digest(batches, self.loaders[0].schedule.total)
            if before == self.step:
                raise RuntimeError("a pass without a batch")

    def _pass(self) -> Iterator[list[Any]]:
        if self.workers:
            self._data = self._data or torch.utils.data.DataLoader(
                self.loaders[0].as_torch(), batch_size=None, num_workers=self.workers
            )
            yield from ([batch] for batch in self._data)
        else:
            yield from (list(parts) for parts in zip(*self.loaders, strict=True))

    def _learn(self, batch: Any) -> None:
        """Give each window a priority that follows from its number."""
        window = np.asarray(batch["window"]).reshape(BATCH, -1)[:, 0].astype(np.int64)
        self.loaders[0].update_priorities(batch, 0.1 + (window * 2_654_435_761 % 1000) / 100.0)


def digest(parts: list[Any], epoch: int | None) -> bytes:
    """Return a hash of all values of a batch; of parts of ranks that of the batch that they make together.

    ``epoch`` is the number of samples of an epoch, which says how large a last batch is.
    """
    found = hashlib.sha256()
    whole = [dict(part.numpy().leaves()) for part in parts]
    for name in whole[0]:
        values = [np.asarray(part[name]) for part in whole]
        x = values[0] if len(values) == 1 else together(values, epoch)
        found.update(f"{name} {x.dtype} {x.shape}".encode())
        found.update(repr(x.tolist()).encode() if x.dtype == object else np.ascontiguousarray(x).tobytes())
    return found.digest()[:16]


def together(parts: list[Any], epoch: int | None) -> Any:
    """Return the global batch of which rank r of W has samples r, r + W, ..."""
    size = sum(map(len, parts))
    size = size if size == BATCH or epoch is None else epoch % BATCH
    x = np.empty((size, *parts[0].shape[1:]), parts[0].dtype)
    for rank, part in enumerate(parts[:size]):
        x[rank :: len(parts)] = part
    return x


# -- places and processes


@dataclass
class World:
    """The stores, the home that has the datasets, and what is where.

    Attributes
    ----------
    top : Path
    near : Path
        The home with all datasets.
    bases : mapping of str to str
        The address of each store.
    """

    top: Path
    near: Path
    bases: Mapping[str, str]

    def open(self, name: str, id: str, place: str, home: Path, cache: Any) -> Dataset:
        """Open a dataset at a place."""
        if place == "disk":
            return rlds_cli.open_dataset(id, home=self.near)
        ds = rlds_cli.open_dataset(f"{self.bases[place]}/{name}", home=home, cache=cache, timeout=60)
        assert ds.store.address
        return ds


def start(work: Callable[[], None], errors: Path) -> int:
    """Run a function in a process of its own; its error is written to a file."""
    child = os.fork()
    if child:
        return child
    os.setpgid(0, 0)
    code = 3
    try:
        warnings.simplefilter("ignore")
        work()
        code = 0
    except BaseException:
        text = io.StringIO()
        traceback.print_exc(file=text)
        errors.write_text(text.getvalue())
    finally:
        os._exit(code)


def run(work: Callable[[], None], errors: Path) -> None:
    """Run a function in a process of its own, to its end.

    Raises
    ------
    RuntimeError
        It failed.
    """
    if os.waitpid(start(work, errors), 0)[1]:
        raise RuntimeError(errors.read_text())


def train(
    world: World, name: str, id: str, loader: str, place: str, log: Path, steps: int, chance: random.Random
) -> None:
    """Train from where the last state is until so many batches are logged."""
    home = log.with_name("home")
    training = Training(
        world.open(name, id, place, home, chance.choice(CACHES)), loader, chance.choice((1, 2, 4)), world.near
    )
    state = log.with_name("state")
    if state.exists():
        training.load(pickle.loads(state.read_bytes()))
    if training.step >= steps:
        return
    with log.open("ab", 0) as out:
        for hashed in training:
            out.write(_LOG.pack(training.step - 1, hashed))
            if training.step >= steps or chance.random() < 0.5:
                save(training.state(), state)
            if training.step >= steps:
                return


def save(state: Any, to: Path) -> None:
    """Replace the file of the state."""
    part = to.with_suffix(".part")
    part.write_bytes(pickle.dumps(state))
    part.replace(to)


def logged(log: Path, wanted: list[bytes] | None = None) -> dict[int, bytes]:
    """Return the hashes of batches by number; raises RuntimeError for one that differs from another or the wanted."""
    found: dict[int, bytes] = {}
    data = log.read_bytes() if log.exists() else b""
    for step, hashed in _LOG.iter_unpack(data[: len(data) // _LOG.size * _LOG.size]):
        expected = found.setdefault(step, hashed) if wanted is None else wanted[step]
        if hashed != expected:
            raise RuntimeError(f"batch {step:,} is another one than {'before' if wanted is None else 'from the disk'}")
        found[step] = hashed
    return found


def undisturbed(world: World, case: tuple[str, str, str], place: str, steps: int, at: Path) -> list[bytes]:
    """Return the hashes of the batches of one process."""
    at.mkdir(parents=True)
    chance = random.Random(0)
    run(lambda: train(world, *case, place, at / "log", steps, chance), at / "error")
    found = logged(at / "log")
    if sorted(found) != list(range(steps)):
        raise RuntimeError(f"{len(found):,} of {steps:,} batches were given")
    return [found[k] for k in range(steps)]


def disturbed(
    world: World, case: tuple[str, str, str], places: list[str], wanted: list[bytes], kills: int, at: Path, seed: int
) -> int:
    """Kill the training so many times, and compare; return how many processes were at work when they were killed."""
    at.mkdir(parents=True)
    chance, log, hit = random.Random(seed), at / "log", 0
    marks = sorted(chance.randrange(len(wanted) * 9 // 10) for _ in range(kills))
    for number, mark in enumerate([*marks, len(wanted)]):
        place, random_of = chance.choice(places), random.Random(seed * 1000 + number)
        child = start(lambda: train(world, *case, place, log, len(wanted), random_of), at / "error")  # noqa: B023
        status, early = 0, number < kills and chance.random() < 0.2
        moved, before = time.monotonic(), -1
        while not status:
            done = log.stat().st_size if log.exists() else 0
            if done != before:
                moved, before = time.monotonic(), done
            if time.monotonic() - moved > _HANGS:
                os.killpg(child, signal.SIGKILL)
                raise RuntimeError(f"no batch for {_HANGS:g} s, from {place}")
            if number < kills and (early or max(logged(log, wanted), default=-1) >= mark):
                time.sleep(chance.random() * (0.3 if early else 0.03))
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
                hit += os.WIFSIGNALED(status)
                break
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.002)
        if (at / "error").exists():
            raise RuntimeError(f"from {place}: {(at / 'error').read_text()}")
        size = log.stat().st_size if log.exists() else 0
        if size:
            os.truncate(log, size // _LOG.size * _LOG.size)
    if sorted(logged(log, wanted)) != list(range(len(wanted))):
        raise RuntimeError("batches are missing")
    return hit


def prepare(world: World, names: list[str], stores: list[str]) -> dict[str, str]:
    """Make datasets and push them to all stores; return their ids."""
    os.environ["RLDS_HOME"] = str(world.near)

    def work() -> None:
        found: dict[str, str] = {}
        rlds_cli.create(BESIDE, episodes(lengths(30, 200), 5, observation=floats(3), action=numbers))
        for name in names:
            for make in filter(None, (BEFORE.get(name), DATASETS[name])):
                found[name] = make(name).id
                for store in set(stores) - {"web"}:  # which reads from the bucket
                    rlds_cli.push(found[name], f"{world.bases[store]}/{name}")
        (world.top / "ids").write_bytes(pickle.dumps(found))

    run(work, world.top / "error")
    found: dict[str, str] = pickle.loads((world.top / "ids").read_bytes())
    return found


def refuses(world: World, case: tuple[str, str, str], at: Path) -> str | None:
    """Return the error of a loader that this dataset cannot have, from the disk."""
    name, id, loader = case

    def work() -> None:
        try:
            next(iter(Training(world.open(name, id, "disk", at, None), loader, 1, world.near)))
        except RldsError as e:
            at.write_text(f"{type(e).__name__}: {e}")

    run(work, at.with_suffix(".error"))
    return at.read_text() if at.exists() else None


@contextmanager
def stores(top: Path) -> Iterator[World]:
    """Run the stores in a process of their own."""
    server, hub = ObjectStore(latency=0.002), Hub(large=100_000)
    server.buckets["soak"] = {}
    near = top / "near"
    environ = server.environ(near) | hub.environ(near)
    child = os.fork()
    if not child:
        with server, hub:
            while True:
                time.sleep(60)
    os.environ.update(environ)
    bases = {
        "s3": "s3://soak",
        "web": f"{server.url}/soak",
        "hub": "hf://datasets/lab/soak",
        "directory": str(top / "store"),
    }
    try:
        yield World(top, near, bases)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    """Run, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=0, help="combinations that are taken; 0 for all")
    for name, all in (("datasets", DATASETS), ("loaders", LOADERS), ("stores", STORES)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(all))
    given = parser.parse_args()
    wrong = soak(given.datasets, given.loaders, given.stores, given.steps, given.kills, given.seed, given.sample)
    sys.exit(f"{wrong} combinations failed" if wrong else 0)


def soak(
    datasets: list[str], loaders: list[str], places: list[str], steps: int, kills: int, seed: int, sample: int
) -> int:
    """Compare all combinations, or a sample of them; return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory() as directory, stores(Path(directory)) as world:
        ids = prepare(world, datasets, places)
        cases = [(name, ids[name], loader) for name in datasets for loader in loaders]
        for number, case in enumerate(random.Random(seed).sample(cases, min(sample or len(cases), len(cases)))):
            began, at = time.monotonic(), world.top / "work"
            place = places[(number + seed) % len(places)]
            try:
                said = compare(world, case, place, places, steps, kills, at, seed + number)
            except RuntimeError as e:
                failed += 1
                said = f"WRONG, from {place}: {e}"
            print(f"{case[0]}, {case[2]}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
            shutil.rmtree(at, ignore_errors=True)
    return failed


def compare(
    world: World, case: tuple[str, str, str], place: str, places: list[str], steps: int, kills: int, at: Path, seed: int
) -> str:
    """Compare the batches of one dataset and one loader; return what was done."""
    at.mkdir()
    refused = refuses(world, case, at / "refused")
    if refused:
        return f"not possible: {refused.splitlines()[0]}"
    wanted = undisturbed(world, case, "disk", steps, at / "disk")
    if undisturbed(world, case, place, steps, at / "store") != wanted:
        raise RuntimeError("batches differ without a kill")
    hit = disturbed(world, case, [place], wanted, kills, at / "killed", seed)
    moved = disturbed(world, case, ["disk", *places], wanted, kills, at / "moved", seed)
    return f"{steps:,} batches are the same, from {place} after {hit} kills, and moved about after {moved}"


if __name__ == "__main__":
    main()
