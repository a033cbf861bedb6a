"""Steps of preprocess as manifests and lock files record them: what they need, and how one is taken again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlds_cli.base import ids, settings
from rlds_cli.base.progress import Progress
from rlds_cli.base.settings import StrPath
from rlds_cli.dataset import Dataset
from rlds_cli.errors import WrongFingerprint
from rlds_cli.preprocess import builtin, functions, running, sources
from rlds_cli.preprocess.sources import LockedFunction


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of preprocess, by its record in a manifest or in a lock file, which may come from a stranger."""

    record: Mapping[str, Any]

    @property
    def reference(self) -> str:
        """Name of the function."""
        return str(self.record.get("reference", ""))

    @property
    def is_builtin(self) -> bool:
        """Whether the function is one of rlds."""
        return self.reference.replace("-", "_") in builtin.MODULES

    @property
    def is_named(self) -> bool:
        """Whether the function is built in, or in a module or a file: not a lambda, and not in a notebook."""
        return ":" in self.reference or self.is_builtin

    @property
    def depends(self) -> dict[str, str]:
        """Files that the function depends on, with their sha256."""
        return dict(self.record.get("depends") or {})

    def files_read(self) -> list[str]:
        """List the files that the function reads: its dependencies, and the files that its arguments name."""
        named = () if self.is_builtin else (name for name, _ in sources.named(self.record["args"]))
        return list(dict.fromkeys([*self.depends, *named]))

    def user_function(self) -> LockedFunction | None:
        """Find the user's function, without importing it; None for a built-in one.

        Raises
        ------
        PreprocessError
            A lock may not name this function; the message says why.
        WrongFingerprint
            Its files have changed.
        """
        files = tuple((str(name), str(sha256)) for name, sha256 in self.record["files"])
        return sources.find_locked(self.reference, files)

    def take(
        self,
        source: Path,
        id: str,
        check: Callable[[Dataset], None],
        *,
        jobs: int | None,
        force: bool,
        home: StrPath | None,
        progress: Progress,
    ) -> Dataset:
        """Make the dataset ``id`` by this step again; the result is discarded if ``check`` of it raises.

        Raises
        ------
        WrongFingerprint
            A file that the function depends on has changed, or ``check`` raises it.
        """
        self._check_depends(id)
        found, record = self.user_function(), self.record
        with nullcontext() if found is None else sources.from_source():
            return running.run_checked(
                check,
                source,
                self.reference if found is None else functions.load_locked(found),
                ids.parse(id).variant,
                unit=record["unit"],
                arrays=record["arrays"],
                args=record["args"],
                span=record.get("window") or (None, None),
                fields=record.get("fields"),
                keep_going=bool(record.get("keep_going")),
                depends_on=list(self.depends),
                jobs=jobs,
                force=force,
                home=home,
                progress=progress,
            )

    def _check_depends(self, id: str) -> None:
        """Check that the files that the function depends on exist and are unchanged."""
        for name, wanted in self.depends.items():
            path = settings.expanded(name)
            now = f"has sha256 {sources.digest(path)}" if path.exists() else "is not here"
            if now != f"has sha256 {wanted}":
                raise WrongFingerprint(
                    f"{id} was made with {name}, which {now}; the lock says sha256 {wanted}.",
                    hint=f"put that file there, as {path.absolute()}",
                )
