"""What formats with a recording for each episode have in common: row k is a message at k / fps seconds.

What messages do not say of an episode is a record in its file, which `archives.recorded_episode` reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rlds_cli.archives.exports.content import Loss
from rlds_cli.archives.exports.format import Format, absent_images
from rlds_cli.archives.exports.hdf5 import decoded, losses_of_values
from rlds_cli.store import Facts
from rlds_cli.ted import CUT, END_NAMES, FLAGS, VIDEO, Field

RECORD, KEY = "rlds", "episode"


class RecordedFormat(Format):
    """A format with a file for each episode, which is read again as a recording."""

    reader = "recordings"
    can = frozenset(("final", "unknown-final", "cut", "seeds", "options", "columns"))
    suffix: ClassVar[str]

    @property
    def rate(self) -> float:
        """Steps of a second; one if nobody knows it: then times count steps."""
        return self.known_rate or 1.0

    @property
    def known_rate(self) -> float | None:
        """Steps of a second as the dataset says them."""
        found = self.content.dataset.manifest.env.get("fps")
        return float(found) if isinstance(found, int | float) and found > 0 else None

    def stem(self, episode: int) -> str:
        """Return the name of the file of an episode without its suffix."""
        return f"episode_{episode:0{max(4, len(str(len(self.content.table))))}}"

    def file(self, directory: Path, episode: int) -> Path:
        """Return the file of an episode."""
        return directory / f"{self.stem(episode)}{self.suffix}"

    def files(self, directory: Path) -> Sequence[Path]:
        """Return the files of all episodes."""
        return [self.file(directory, k) for k in range(len(self.content.table))]

    def losses_of_fields(self) -> Iterator[Loss]:
        """Yield the losses of fields: types that messages lack, missing images and texts, videos."""
        for f in self.content.fields.values():
            found = list(losses_of_values(self.content, f))
            if not found and f.kind == "array" and 0 in f.shape:
                found = [Loss("field", f"{f.name}, whose rows have no values", f.name)]
            if not found and f.kind == "frames" and f.codec != VIDEO:
                absent = absent_images(self.content, f.name)
                found = [Loss("field", f"{f.name}, of which {absent:,} steps have no image", f.name)] if absent else []
            yield from found
            if not found and f.codec == VIDEO:
                yield self.of_video(f)

    def of_video(self, f: Field) -> Loss:
        """Return the loss of a field in videos."""
        return decoded(f)

    def said(self, episode: int) -> Mapping[str, Any]:
        """Return what messages do not say of an episode."""
        table, m = self.content.table, self.content.dataset.manifest
        deep = {n: about["unit"] for n, about in Facts(m).depth.items() if n in self.content.fields and "unit" in about}
        return {
            "steps": int(table.length[episode]),
            "hz": self.rate,
            "fps": m.env.get("fps"),
            "end": next(name for name, code in zip(END_NAMES, range(3), strict=True) if code == table.end[episode]),
            "final": bool(table.observed[episode]),
            "seed": table.seed[episode],
            "options": table.options[episode],
            "columns": {name: values[episode] for name, values in table.extra.items()},
            "depth": {name: unit for name, unit in deep.items() if self.content.fields[name].dtype == "uint16"},
            "fields": {
                name: {"dtype": f.dtype, "shape": f.shape, "placement": f.placement, "kind": f.kind, "codec": f.codec}
                for name, f in self.content.fields.items()
            },
        }

    def rows(self, f: Field, episode: int, start: int, stop: int) -> Any:
        """Return rows of the content, which are those of an episode: values, texts, encoded images."""
        if f.kind == "frames":
            return self.content.frames(f.name, start, stop)
        rows = self.content.rows(f.name, start, stop)
        last = int(self.content.starts[episode] + self.content.table.length[episode]) - 1
        if f.name == FLAGS[1] and self.content.table.end[episode] == CUT and start <= last < stop:
            rows = rows.copy()
            rows[last - start] = False  # a recording that ends has no flag
        return rows
