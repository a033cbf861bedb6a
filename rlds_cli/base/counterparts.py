"""The code to write instead of what users know from other libraries: attributes, arguments and names of fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from rlds_cli.base.text import closest
from rlds_cli.errors import InvalidArgument

_CREATE = 'rlds_cli.append(ID, FILES), or with rlds_cli.writer("local/NAME") as w: w.add_episodes(episodes)'
_PRIORITIES = "loader.update_priorities(batch, priority)"
_SAMPLE = "batches = iter(Loader(ds, 256)) once, and batch = next(batches) for every sample"
_EPISODES = "for k in range(ds.num_episodes): episode = ds.episode(k)"
_TRANSFORM = "Loader(ds, 256, transform=function_of_a_batch), or transform(batch.tensordict()) of a TorchRL transform"
DATASET = {
    "sample": _SAMPLE,
    "sample_batch": _SAMPLE,
    "get_batch": _SAMPLE,
    "iter_batches": "ds.loader(256)",
    "extend": _CREATE,
    "add": _CREATE,
    "preprocess": 'ds.map(function, "name")',
    "shuffle": "Loader(ds, 256, sampler=Shuffled())",
    "append_transform": _TRANSFORM,
    "update_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "update_tensordict_priority": f"Loader(ds, 256, sampler=Prioritized()) and {_PRIORITIES}",
    "iterate_episodes": _EPISODES,
    "iter_episodes": _EPISODES,
    "sample_episodes": "batches = iter(Loader(ds, 8, window=Episode())) once, and batch = next(batches)",
    "filter_episodes": "ds.filter(function_of_an_episode)",
    "recover_environment": "ds.make_env()",
    "total_steps": "ds.num_steps",
    "total_episodes": "ds.num_episodes",
    "n_episodes": "ds.num_episodes",
    "size": "len(ds) transitions of ds.num_episodes episodes",
    "returns": 'ds.episodes["total_reward"]',
    "episode_returns": 'ds.episodes["total_reward"]',
    "episode_lengths": 'ds.episodes["length"]',
    "lengths": 'ds.episodes["length"]',
    "features": "ds.schema",
    "keys": "ds.schema",
    "columns": "ds.schema for the fields, ds.episodes for a table of episodes",
    "column_names": "list(ds.schema) for the fields, list(ds.episodes) for the columns of episodes",
    "shape": "len(ds) transitions of ds.num_episodes episodes; ds.schema has the shapes of fields",
    "observations": 'ds["observation"]',
    "next_observations": 'ds["next/observation"]',
    "actions": 'ds["action"]',
    "rewards": 'ds["next/reward"]',
    "terminals": 'ds["next/terminated"]',
    "terminations": 'ds["next/terminated"]',
    "truncations": 'ds["next/truncated"]',
    "timeouts": 'ds["next/truncated"]',
    "dones": 'ds["next/done"]',
    "get_episode": "ds.episode(k)",
    "episode_data": "ds.episode(k)",
    "get_dataset": 'ds.to_numpy("d4rl")',
    "train_test_split": "train, test = ds.split(0.9, 0.1, seed=0)",
    "random_split": "train, test = ds.split(0.9, 0.1, seed=0)",
    "split_dataset": "train, test = ds.split(0.9, 0.1, seed=0)",
    "to_pandas": "ds.episodes.to_pandas() has a row for each episode",
    "to_torch": "Loader(ds, 256), whose batches hold tensors",
    "repeat": "Loader(ds, 256, steps=100_000)",
    "to_dict": 'ds.to_numpy("d4rl"), or dict(ds[:])',
    "dataloader": "ds.loader(256), or Loader(ds, 256).as_torch() for a DataLoader",
    "batch": "ds.loader(256)",
    "set_format": 'Loader(ds, 256, backend="torch")',
    "with_format": 'Loader(ds, 256, backend="torch")',
    "take": "ds.select(episodes=slice(0, 10)), or ds[:1000]",
    "skip": "ds.select(episodes=slice(10, None))",
    "head": "ds[:5]; ds.episodes for a table of episodes",
    "describe": "ds.stats, or rlds_cli.inspect(ds)",
    "info": "rlds_cli.inspect(ds); ds.manifest has what is recorded",
    "summary": "rlds_cli.inspect(ds)",
    "inspect": "rlds_cli.inspect(ds)",
    "check": "rlds_cli.check(ds)",
    "export": 'rlds_cli.export(ds, "lerobot", "DIR")',
    "push": 'rlds_cli.push(ds, "ADDRESS")',
    "push_to_hub": 'rlds_cli.push(ds, "hf://datasets/OWNER/NAME")',
    "save_to_disk": 'ds.save("NAME")',
    "concatenate": 'rlds_cli.merge([ds, other], "local/NAME"), or Loader(Mixture({"a": ds, "b": other}), 256)',
    "env": "ds.make_env()",
    "spec": "ds.make_env().spec; ds.manifest has the environment that is recorded",
    "env_spec": "ds.make_env().spec; ds.manifest has the environment that is recorded",
    "normalize": "Loader(ds, 256, transform=...), with ds.stats",
    "delete": "rlds rm ID in a shell",
}
MODULE = {
    "load_dataset": "rlds_cli.load(ID), which downloads what is not here; rlds_cli.open_dataset(ID) opens what is",
    "get_dataset": "rlds_cli.load(ID), which downloads what is not here; rlds_cli.open_dataset(ID) opens what is",
    "open": "rlds_cli.open_dataset(ID)",
    "make_dataset": 'rlds_cli.create("local/NAME", episodes)',
    "from_hdf5": 'rlds_cli.import_files("FILE.hdf5", "local/NAME")',
    "from_file": 'rlds_cli.import_files("FILE", "local/NAME")',
    "from_numpy": 'rlds_cli.create("local/NAME", episodes)',
    "from_episodes": 'rlds_cli.create("local/NAME", episodes)',
    "list_datasets": "rlds_cli.find()",
    "list_local_datasets": "rlds_cli.find(local=True)",
    "list_remote_datasets": "rlds_cli.find()",
    "search": 'rlds_cli.find("WORDS")',
    "concatenate_datasets": 'rlds_cli.merge([a, b], "local/NAME"), or Loader(Mixture({"a": a, "b": b}), 256)',
    "combine_datasets": 'rlds_cli.merge([a, b], "local/NAME")',
    "download_dataset": "rlds_cli.download(ID)",
    "delete_dataset": "rlds rm ID in a shell",
    "ReplayBuffer": "rlds_cli.Loader(ID, batch_size=256); rlds_cli.writer for a dataset that grows",
    "DataLoader": "rlds_cli.Loader(ID, batch_size=256), or its .as_torch() in torch's DataLoader",
    "upload": 'rlds_cli.push(ds, "ADDRESS")',
    "Mixture": "from rlds_cli.loader import Mixture",
    "Transition": "from rlds_cli.loader import Transition",
    "Slice": "from rlds_cli.loader import Slice",
    "Episode": "from rlds_cli.loader import Episode",
}
LOADER = {
    "sample": "batches = iter(loader) once, and batch = next(batches) for every sample",
    "epoch": "for epoch in range(10): for batch in loader: ..., sampler=Shuffled(); loader.set_epoch(3) goes there",
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
# Names of fields of other libraries, as paths in a batch.
FIELDS = {
    "obs": "observation",
    "observations": "observation",
    "state": "observation",
    "states": "observation",
    "s": "observation",
    "acts": "action",
    "actions": "action",
    "a": "action",
    "next_obs": "next/observation",
    "next_observation": "next/observation",
    "next_observations": "next/observation",
    "next_state": "next/observation",
    "next_states": "next/observation",
    "s_next": "next/observation",
    "reward": "next/reward",
    "rewards": "next/reward",
    "rew": "next/reward",
    "rews": "next/reward",
    "r": "next/reward",
    "done": "next/done",
    "dones": "next/done",
    "terminal": "next/terminated",
    "terminals": "next/terminated",
    "terminated": "next/terminated",
    "terminations": "next/terminated",
    "timeouts": "next/truncated",
    "truncated": "next/truncated",
    "truncations": "next/truncated",
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


def no_attribute(module: str, name: str, instead: Mapping[str, str]) -> AttributeError:
    """Return the AttributeError of ``module.name``, with a hint at the code to write instead if there is some."""
    code = instead.get(name)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f"\n  hint: {code}" if code else ""))


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
