"""Names of other libraries and the code to write instead, for the messages of attribute errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

_CREATE = 'rlds_cli.create("local/NAME", episodes): a dataset does not grow'
_PRIORITIES = "loader.update_priorities(batch, priority)"
_TRANSFORM = "Loader(ds, 256, transform=function_of_a_batch), or transform(batch.tensordict()) of a TorchRL transform"

DATASET = {
    "sample": "batches = iter(Loader(ds, 256)) once, and batch = next(batches) for every sample",
    "extend": _CREATE,
    "add": _CREATE,
    "preprocess": 'rlds_cli.preprocess.run(ds, function, "name")',
    "map": 'rlds_cli.preprocess.run(ds, function, "name")',
    "filter": 'ds.select(where="total_reward > 100")',
    "shuffle": "Loader(ds, 256, sampler=Shuffled())",
    "append_transform": _TRANSFORM,
    "update_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "update_tensordict_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "iterate_episodes": "for k in range(ds.num_episodes): episode = ds.episode(k)",
    "sample_episodes": "batches = iter(Loader(ds, 8, window=Episode())) once, and batch = next(batches)",
    "filter_episodes": 'ds.select(where="total_reward > 100")',
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


def missing(of: object, name: str, instead: Mapping[str, str]) -> NoReturn:
    """Raise the AttributeError of ``of.name``, with the line of code to write instead where there is one.

    For ``__getattr__``: a property that raised an AttributeError of its own raises it again.
    """
    if hasattr(type(of), name):
        object.__getattribute__(of, name)
    code = instead.get(name)
    hint = f"\n  hint: {code}" if code else ""
    raise AttributeError(f"{type(of).__name__!r} object has no attribute {name!r}{hint}")
