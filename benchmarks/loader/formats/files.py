"""The sources in the formats of peers, each written once, by the peer itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import rlds_cli
from loader import data
from loader.formats import sources
from loader.formats.sources import BUCKET, PLACE, WINDOW

CHUNK = "64MB"  # of litdata, as its documentation has it


def whole(place: Path, write: Callable[[Path], None]) -> Path:
    """Return a file or directory, which is written where it is not there; it appears when it is complete."""
    if not place.exists():
        part = place.with_name(f"part-{place.name}")
        shutil.rmtree(part, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        part.rename(place)
    return place


# -- litdata


def litdata_rows(episodes: int) -> Path:
    """An item is a transition: a dictionary of tensors."""
    import torch

    def items() -> Iterator[dict[str, Any]]:
        columns = {name: torch.from_numpy(values) for name, values in sources.transitions(episodes).items()}
        for k in range(episodes * data.EPISODE):
            yield {name: values[k] for name, values in columns.items()}

    return whole(BUCKET / f"litdata-rows-{episodes}", lambda place: _litdata(place, items()))


def litdata_windows(form: str) -> Path:
    """An item is a window, since litdata knows no neighbours: its pictures are JPEG images, as advised, or a tensor."""
    import torch

    def items() -> Iterator[dict[str, Any]]:
        for k in range(sources.EPISODES):
            views, each = sources.pictures(k), sources.numbers(k)
            for at in range(0, sources.STEPS, WINDOW):
                part = slice(at, at + WINDOW)
                item: dict[str, Any] = {name: torch.from_numpy(values[part].copy()) for name, values in each.items()}
                item["camera"] = torch.from_numpy(views[part].copy()) if form == "raw" else _images(views[part])
                yield item

    return whole(BUCKET / f"litdata-{form}", lambda place: _litdata(place, items()))


def _images(views: np.ndarray) -> Any:
    from litdata import Jpeg
    from litdata.types import JpegArray

    return JpegArray([Jpeg(bytes=sources.jpeg(view)) for view in views])


def _litdata(place: Path, items: Iterator[Any]) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(place), chunk_bytes=CHUNK)
    for k, item in enumerate(items):
        writer.add_item(k, item)
    writer.done()
    writer.merge()


# -- Lance


def lance_rows(episodes: int) -> Path:
    """A row is a transition."""
    import pyarrow as pa

    table = pa.table({name: _arrow(values) for name, values in sources.transitions(episodes).items()})
    return whole(BUCKET / f"rows-{episodes}.lance", lambda place: _lance(place, table.schema, table.to_batches()))


def lance_frames(form: str) -> Path:
    """A row is a step; its picture is a list of bytes of fixed size, or a JPEG image."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        for k in range(sources.EPISODES):
            views = sources.pictures(k)
            camera = _arrow(views) if form == "raw" else pa.array([sources.jpeg(view) for view in views], pa.binary())
            columns = {name: _arrow(values) for name, values in sources.numbers(k).items()}
            yield pa.record_batch(columns | {"camera": camera})

    def write(place: Path) -> None:
        made = batches()
        first = next(made)
        _lance(place, first.schema, (batch for part in ([first], made) for batch in part))

    return whole(BUCKET / f"{form}.lance", write)


def _arrow(values: np.ndarray) -> Any:
    import pyarrow as pa

    if values.ndim == 1:
        return pa.array(values)
    width = values[0].size
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)


def _lance(place: Path, schema: Any, batches: Any) -> None:
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(place))


# -- TensorDict


def tensordict_rows(episodes: int) -> Path:
    """Memory-mapped tensors of all transitions."""
    return whole(PLACE / f"tensordict-rows-{episodes}", lambda p: _tensordict(p, sources.transitions(episodes)))


def tensordict_frames() -> Path:
    """Memory-mapped tensors of all steps."""

    def columns() -> dict[str, np.ndarray]:
        each = [{"camera": sources.pictures(k), **sources.numbers(k)} for k in range(sources.EPISODES)]
        return {name: np.concatenate([e[name] for e in each]) for name in each[0]}

    return whole(PLACE / "tensordict-raw", lambda place: _tensordict(place, columns()))


def _tensordict(place: Path, columns: dict[str, np.ndarray]) -> None:
    from loader import peers

    peers.tensordict(columns).memmap(place)


# -- LeRobot, by our export: its values are compared with the source like those of the others


def lerobot_rows(episodes: int) -> Path:
    """LeRobot has no next observations: they are the next row's."""
    return whole(PLACE / f"lerobot-rows-{episodes}", lambda place: _lerobot(place, data.halfcheetah(episodes)))


def lerobot_videos() -> Path:
    """The videos themselves, by LeRobot's file layout."""
    return whole(PLACE / "lerobot-videos", lambda place: _lerobot(place, sources.cameras("video")))


def _lerobot(place: Path, dataset: Any) -> None:
    rlds_cli.export(dataset, "lerobot", place, lossy=True, home=data.HOME)


# -- ours


def pushed(dataset: Any, name: str) -> Path:
    """Push a dataset to the bucket."""

    def push(place: Path) -> None:
        rlds_cli.push(dataset, place, home=data.HOME)
        shutil.rmtree(data.HOME / "origins", ignore_errors=True)  # the address shall not lead back to this home

    return whole(BUCKET / name, push)


def videos() -> Path:
    """Put the videos into the bucket."""
    found = sources.videos()
    return whole(BUCKET / "videos", lambda place: _copied(found[0].parent, place))


def _copied(directory: Path, to: Path) -> None:
    shutil.copytree(directory, to)
