"""Methods of a dataset that call the functions of packages above, by their public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

import rlds_cli  # its names are loaded when they are used, so a package below may call those above
from rlds_cli.base import notebooks

if TYPE_CHECKING:
    import jax
    import torch

    from rlds_cli.base.array_types import Array
    from rlds_cli.dataset.batch import Batch


class Shortcuts:
    """What is done to a dataset most often, as methods of it."""

    def filter(self, condition: str | Callable[[Batch], bool]) -> rlds_cli.Dataset:
        """Return the episodes for which a condition is true, as a selection: no row is copied.

        Parameters
        ----------
        condition : str or callable
            A comparison of episode columns as in ``select(where=...)``, ``"total_reward > 3000"``; or a function of
            an episode, ``lambda e: e["action"].max() < 1``, which reads every episode once.

        Raises
        ------
        InvalidExpression
            The comparison is invalid, or names an unknown column.
        """
        ds = cast("rlds_cli.Dataset", self)
        if isinstance(condition, str):
            return ds.select(where=condition)
        return ds.select(episodes=np.array([bool(condition(ds.episode(k))) for k in range(ds.num_episodes)], bool))

    def map(self, fn: Callable[..., Any] | str, name: str | None = None, **options: Any) -> rlds_cli.Dataset:
        """Apply a function to every episode and return the result, the dataset ``ID@NAME``.

        Parameters
        ----------
        fn : callable or str
            A function of an episode: a dict of arrays that starts with ``observation`` [T+1, ...] and ``action``
            [T, ...]. It returns such a dict, None to drop the episode, or a list to split it.
        name : str, optional
            Name of the result; by default that of the function.
        **options
            Other arguments of `preprocess.run`, such as ``unit="batch"`` and ``jobs=4``.

        Raises
        ------
        PreprocessError
            The function fails, or returns what cannot be stored.
        """
        return rlds_cli.preprocess.run(cast("rlds_cli.Dataset", self), fn, name, **options)

    @overload
    def loader(
        self, batch_size: int = 256, *, backend: Literal["torch"] = "torch", **options: Any
    ) -> rlds_cli.Loader[torch.Tensor]: ...

    @overload
    def loader(self, batch_size: int = 256, *, backend: Literal["numpy"], **options: Any) -> rlds_cli.Loader[Array]: ...

    @overload
    def loader(
        self, batch_size: int = 256, *, backend: Literal["jax"], **options: Any
    ) -> rlds_cli.Loader[jax.Array]: ...

    def loader(self, batch_size: int = 256, **options: Any) -> rlds_cli.Loader:
        """Return a `Loader` of this dataset; ``options`` are its arguments, such as ``window`` and ``sampler``."""
        return rlds_cli.Loader(cast("rlds_cli.Dataset", self), batch_size, **options)

    def _repr_html_(self) -> str:
        """Return what `rlds_cli.inspect` says of the fields as a table, for notebooks.

        Of a dataset at an address, whose rows are not fetched for that, the table names the fields alone.
        """
        ds = cast("rlds_cli.Dataset", self)
        title, whole = repr(ds)[1:-1], ds.manifest.counts.episodes
        if ds.store.address:
            rows = [(f.name, f.placement, f.codec or f.dtype, list(f.shape)) for f in ds.schema.values()]
            return notebooks.table(title, ["field", "placement", "dtype", "shape"], rows)
        of_all = f"; statistics of all {whole:,} episodes" if ds.num_episodes < whole else ""
        return rlds_cli.report.summarise(ds)._repr_html_(f"{title}{of_all}")

    def view(self, *, height: int = 720, port: int = 0) -> rlds_cli.view.Shown:
        """Show the episodes in a browser, or in the frame of a notebook: play, search, sort and filter them.

        The last expression of a cell is shown as a frame; elsewhere ``print(ds.view().address)`` says where to look.
        It ends with its ``close()``, or with the process.

        Parameters
        ----------
        height : int
            Of the frame, in pixels.
        port : int
            By default any that is free.

        Raises
        ------
        MissingPackage
            The extra ``view`` is not installed.
        RldsError
            The port is taken.
        """
        return rlds_cli.view.show(cast("rlds_cli.Dataset", self), height=height, port=port)
