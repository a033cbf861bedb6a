"""The code to write instead of what users know from other libraries: attributes, arguments and names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from rlds_cli.base.text import closest
from rlds_cli.errors import InvalidArgument

_CREATE = 'rlds_cli.create("local/NAME", episodes): a dataset does not grow'
_PRIORITIES = "loader.update_priorities(batch, priority)"
_TRANSFORM = "Loader(ds, 256, transform=function_of_a_batch), or transform(batch.tensordict()) of a TorchRL transform"
DATASET = {
    "sample": "batches = iter(Loader(ds, 256)) once, and batch = next(batches) for every sample",
    "extend": _CREATE,
    "add": _CREATE,
    "preprocess": 'ds.map(function, "name")',
    "shuffle": "Loader(ds, 256, sampler=Shuffled())",
    "append_transform": _TRANSFORM,
    "update_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "update_tensordict_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "iterate_episodes": "for k in range(ds.num_episodes): episode = ds.episode(k)",
    "sample_episodes": "batches = iter(Loader(ds, 8, window=Episode())) once, and batch = next(batches)",
    "filter_episodes": "ds.filter(function_of_an_episode)",
    "recover_environment": "ds.make_env()",
    "total_steps": "ds.num_steps",
    "total_episodes": "ds.num_episodes",
    "features": "ds.schema",
    "keys": "ds.schema",
}
LOADER = {
    "sample": "batches = iter(loader) once, and batch = next(batches) for every sample",
    "extend": _CREATE,
    "add": _CREATE,
    "preprocess": 'rlds_cli.preprocess.run(loader.dataset, function, "name")',
    "append_transform": _TRANSFORM,
    "update_priority": _PRIORITIES,
    "update_tensordict_priority": f"{_PRIORITIES}, which takes a TensorDict as well",
}
BATCH = {
    "batch_size": "batch.tensordict().batch_size",
    "shape": "batch.tensordict().shape",
    "reshape": "batch.tensordict().reshape(-1)",
    "set": 'batch["name"] = values',
    "set_": 'batch["name"] = values',
    "select": 'Loader(..., fields=("observation", "action")), or batch.tensordict().select("observation")',
    "exclude": 'batch.tensordict().exclude("action")',
    "cpu": 'batch.to("cpu")',
    "cuda": 'batch.to("cuda")',
    "to_tensordict": "batch.tensordict()",
}

_SLICES = "window=Slice(20)"
_THREADS = "prefetch=2 reads ahead in threads"
_PROCESSES = "DataLoader(loader.as_torch(), batch_size=None, num_workers=4)"
LOADER_ARGUMENTS = {
    "shuffle": "sampler=Shuffled() for True, sampler=Sequential() for False",
    "replacement": "sampler=Uniform() for True, sampler=Shuffled() for False",
    "drop_last": "sampler=Shuffled(drop_last=True)",
    "weights": 'sampler=Weighted("COLUMN"); of several datasets, Mixture({"a": ds1, "b": ds2}, {"a": 3, "b": 1})',
    "alpha": "sampler=Prioritized(alpha=0.6)",
    "beta": "sampler=Prioritized(beta=0.4)",
    "num_workers": f"{_PROCESSES}; {_THREADS}",
    "prefetch_factor": _THREADS,
    "persistent_workers": _PROCESSES,
    "pin_memory": 'device="cuda", which copies every batch from pinned memory',
    "collate_fn": "transform=function_of_a_batch; samples are gathered as a whole batch, not one by one",
    "gamma": "window=Transition(n_step=3, gamma=0.99), or fields=[..., ReturnToGo(gamma=0.99)]",
    "n_step": "window=Transition(n_step=3, gamma=0.99)",
    "slice_len": _SLICES,
    "seq_len": _SLICES,
    "sequence_length": _SLICES,
    "num_slices": f"{_SLICES}, and the number of slices as batch_size",
    "split": 'Loader(ds.select(split="train"), 256)',
    "where": 'Loader(ds.select(where="total_reward > 100"), 256)',
    "episodes": "Loader(ds.select(episodes=[0, 1, 2]), 256)",
    "epochs": "for epoch in range(10): for batch in loader: ..., with sampler=Shuffled()",
    "generator": "seed=0",
}


def missing(of: object, name: str, instead: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of ``of.name``, with a hint at the code to write instead if there is some.

    For ``__getattr__``: a property that raised an AttributeError of its own raises it again.
    """
    if hasattr(type(of), name):
        object.__getattribute__(of, name)
    code = instead.get(name)
    hint = f"\n  hint: {code}" if code else ""
    raise AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}{hint}")


def unexpected(of: str, given: Iterable[str], known: Iterable[str], instead: Mapping[str, str]) -> NoReturn:
    """Raise the error of arguments ``given`` to ``of``, which takes those in ``known``.

    Raises
    ------
    InvalidArgument
        The first argument by name, with the code to write ``instead``, or the argument that is spelt most like it.
    """
    name = next(iter(given))
    near = closest(name, known)
    hint = instead.get(name) or (near and f"{near}=")
    raise InvalidArgument(f"{of} has no argument {name}=.", hint=hint or f"its arguments: {', '.join(known)}")
