"""The peers, set up as their documentation says, over arrays by field name: ``observation``, ``next/reward``, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from results import DATA

from loader.cases import Call
from loader.data import EPISODE

Arrays = dict[str, np.ndarray]
FLAT = {  # as these libraries call them
    "observation": "obs",
    "action": "act",
    "next/reward": "rew",
    "next/observation": "next_obs",
    "next/terminated": "terminated",
    "next/truncated": "truncated",
}


def scratch() -> Path:
    """A directory for a peer's own files; the parent clears them."""
    place = DATA / "scratch"
    place.mkdir(parents=True, exist_ok=True)
    return Path(mkdtemp(dir=place))


# -- TorchRL


def tensordict(arrays: Arrays) -> Any:
    import torch
    from tensordict import TensorDict

    steps = len(next(iter(arrays.values())))
    td = TensorDict({}, [steps])
    for name, values in arrays.items():
        td[tuple(name.split("/"))] = torch.from_numpy(values)
    return td


def torchrl_memmap(arrays: Arrays, size: int, sampler: Any, **options: Any) -> Any:
    """A replay buffer over memory-mapped storage, filled."""
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    steps = len(next(iter(arrays.values())))
    storage = LazyMemmapStorage(steps, scratch_dir=scratch())
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=size, **options)
    buffer.extend(tensordict(arrays))
    return buffer


def torchrl_over(td: Any, size: int, sampler: Any) -> Any:
    """A replay buffer over a TensorDict that is mapped already."""
    from torchrl.data import TensorDictReplayBuffer
    from torchrl.data.replay_buffers.storages import TensorStorage

    return TensorDictReplayBuffer(storage=TensorStorage(td), sampler=sampler, batch_size=size)


# -- cpprb, tianshou, rlox: NumPy out


def flat(arrays: Arrays) -> Arrays:
    """Under the names above; rewards and flags [N]."""
    return {
        ours: arrays[name].reshape(-1) if arrays[name].shape[1:] == (1,) else arrays[name]
        for name, ours in FLAT.items()
    }


def cpprb(arrays: Arrays, prioritized: bool = False) -> Any:
    from cpprb import PrioritizedReplayBuffer, ReplayBuffer

    columns = flat(arrays)
    steps = len(columns["rew"])
    described = {name: {"shape": values.shape[1:] or 1, "dtype": values.dtype} for name, values in columns.items()}
    buffer = PrioritizedReplayBuffer(steps, described, alpha=0.6) if prioritized else ReplayBuffer(steps, described)
    buffer.add(**columns)
    return buffer


def tianshou(arrays: Arrays, prioritized: bool = False) -> Any:
    from tianshou.data import Batch, PrioritizedReplayBuffer, ReplayBuffer

    columns = flat(arrays)
    steps = len(columns["rew"])
    buffer = PrioritizedReplayBuffer(steps, alpha=0.6, beta=0.4) if prioritized else ReplayBuffer(steps)
    columns["obs_next"] = columns.pop("next_obs")
    columns["rew"] = columns["rew"].astype(np.float64)
    done = columns["terminated"] | columns["truncated"]
    buffer.set_batch(Batch(**columns, done=done, info=Batch(), policy=Batch()))
    buffer._size, buffer._insertion_idx = steps, 0  # filled at once; adding a step at a time takes minutes
    if prioritized:
        buffer.init_weight(np.arange(steps))
    return buffer


def rlox(arrays: Arrays) -> Any:
    from rlox import OfflineDatasetBuffer

    c = flat(arrays)
    flags = (c[name].astype(np.uint8) for name in ("terminated", "truncated"))
    return OfflineDatasetBuffer(c["obs"].ravel(), c["next_obs"].ravel(), c["act"].ravel(), c["rew"], *flags)


def rlox_sequences(arrays: Arrays) -> Any:
    """A buffer that knows episodes; a step is added at a time, since nothing else is offered."""
    from rlox import SequenceReplayBuffer

    c = flat(arrays)
    buffer = SequenceReplayBuffer(len(c["rew"]), c["obs"].shape[1], c["act"].shape[1])
    flags = (c[name].tolist() for name in ("terminated", "truncated"))
    for step in zip(c["obs"], c["next_obs"], c["act"], c["rew"].tolist(), *flags, strict=True):
        buffer.push(*step)
    return buffer


def flashbax(arrays: Arrays, size: int, length: int = 1, prioritized: bool = False) -> tuple[Any, Any, Any]:
    """A buffer of episodes of equal length, all filled: (state, a jitted ``sample``, a jitted ``set_priorities``)."""
    import flashbax
    import jax
    import jax.numpy as jnp

    steps = len(next(iter(arrays.values())))
    episode = EPISODE if length > 1 else steps
    columns = {name: x.reshape(-1, episode, *x.shape[1:]) for name, x in flat(arrays).items()}
    made = flashbax.make_prioritised_trajectory_buffer if prioritized else flashbax.make_trajectory_buffer
    buffer = made(
        add_batch_size=steps // episode,
        sample_batch_size=size,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=episode,
    )
    state = buffer.init({name: jnp.asarray(x[0, 0]) for name, x in columns.items()})
    state = jax.jit(buffer.add, donate_argnums=0)(state, {name: jnp.asarray(x) for name, x in columns.items()})
    weigh = jax.jit(buffer.set_priorities, donate_argnums=0) if prioritized else None
    return state, jax.jit(buffer.sample), weigh


def flashbax_batches(arrays: Arrays, size: int, length: int = 1) -> Call:
    """Uniform batches, each awaited."""
    import jax

    state, sample, _ = flashbax(arrays, size, length)
    keys = iter(jax.random.split(jax.random.key(0), 1 << 16))
    return lambda: jax.block_until_ready(sample(state, next(keys)))


def seeds() -> Iterator[int]:
    seed = 0
    while True:
        seed += 1
        yield seed


# -- by hand


def take(arrays: Arrays, size: int) -> Call:
    """What a careful script does: arrays in memory, one ``take`` per field."""
    rng = np.random.default_rng(0)
    steps = len(next(iter(arrays.values())))

    def batch() -> Arrays:
        index = rng.integers(steps, size=size)
        return {name: values.take(index, axis=0) for name, values in arrays.items()}

    return batch


def fancy(arrays: Arrays, size: int) -> Call:
    """What most scripts do."""
    rng = np.random.default_rng(0)
    steps = len(next(iter(arrays.values())))

    def batch() -> Arrays:
        index = rng.integers(steps, size=size)
        return {name: values[index] for name, values in arrays.items()}

    return batch


def packed_take(arrays: Arrays, size: int) -> Call:
    """The limit: as many bytes from one array, in one call."""
    steps = len(next(iter(arrays.values())))
    width = sum(values.dtype.itemsize * int(np.prod(values.shape[1:])) for values in arrays.values())
    packed = np.ones((steps, -(-width // 8)), np.int64)
    rng = np.random.default_rng(0)
    return lambda: packed.take(rng.integers(steps, size=size), axis=0)


def mapped(arrays: Callable[[], Arrays], place: Path) -> Arrays:
    """Arrays as files, mapped: for DataLoader workers, which get no copies."""
    place.mkdir(parents=True, exist_ok=True)
    files = sorted(place.glob("*.npy"))
    if not files:
        for name, values in arrays().items():
            np.save(place / f"{name.replace('/', '+')}.npy", values)
        files = sorted(place.glob("*.npy"))
    return {f.stem.replace("+", "/"): np.load(f, mmap_mode="r") for f in files}
