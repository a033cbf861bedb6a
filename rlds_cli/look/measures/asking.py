"""What users ask of measures: to compute them, to read them as columns, and to select and trim by findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlds_cli.base.progress import Progress
from rlds_cli.dataset import Dataset
from rlds_cli.look.checks.check_report import CheckReport
from rlds_cli.look.checks.findings import Finding
from rlds_cli.look.measures import catalogue, decisions, rules, suppressing
from rlds_cli.look.measures.comparing import ComparedMeasures
from rlds_cli.look.measures.decisions import Trimmed
from rlds_cli.look.measures.found import findings
from rlds_cli.look.measures.rules import Explained
from rlds_cli.look.measures.suppressing import Suppression


class Measures(ComparedMeasures):
    """The measures of the episodes of a dataset.

    Parameters
    ----------
    dataset : Dataset
        Of a selection, `column` has the values of its episodes; siblings are those of the whole version.
    home : path, optional
        A home to keep measures in, where that of the dataset may not be written, instead of ``RLDS_HOME``.

    Examples
    --------
    >>> m = Measures(rlds_cli.open_dataset("local/day1"))  # doctest: +SKIP
    >>> m.compute(["motion"])  # doctest: +SKIP
    >>> m.column("quality_idle_share")  # doctest: +SKIP
    >>> m.dropping(["idle"]).save("awake")  # doctest: +SKIP
    """

    @staticmethod
    def explained() -> tuple[Explained, ...]:
        """Return all measures that rlds computes, with their units, sources and findings."""
        return rules.explained()

    def findings(self, groups: Iterable[str]) -> tuple[Finding, ...]:
        """Return the findings of groups of measures, which were computed, in the whole version."""
        return tuple(findings(self, catalogue.groups(groups)))

    def suppress(self, report: CheckReport, code: str, reason: str) -> Suppression:
        """Suppress the findings of one code of a report from now on; see `suppressing.suppress`."""
        return suppressing.suppress(self.store, report, code, reason, self.directory)

    def dropping(self, codes: Sequence[str]) -> Dataset:
        """Return the selected episodes without those that findings of these codes name; see `decisions.dropping`."""
        return decisions.dropping(self, codes)

    def trimming(self, what: str) -> Trimmed:
        """Return which steps of the selected episodes stay by ``idle`` or ``openpi-idle``; see `decisions`."""
        return decisions.trimming(self, what)

    def differing(
        self, account: Mapping[str, Any], *, jobs: int | None = None, progress: Progress | bool | None = None
    ) -> tuple[str, ...]:
        """Compute what an account says once more, and say where it differs; see `decisions.differing`."""
        return decisions.differing(self, account, jobs=jobs, progress=progress)
