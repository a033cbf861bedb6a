"""Find the reference returns of the scores of a dataset."""

from __future__ import annotations

from rlds_cli import homes
from rlds_cli.errors import RldsError
from rlds_cli.store import Manifest


def reference_scores(manifest: Manifest) -> tuple[float, float]:
    """Return the returns for scores 0 and 1, from the archive or else from the registry.

    Raises
    ------
    RldsError
        Neither has reference scores.
    """
    facts = manifest.facts
    scores = facts.get("ref_min_score"), facts.get("ref_max_score")
    if None in scores:
        entry = homes.entry_of(manifest.id)
        scores = (entry.ref_min_score, entry.ref_max_score) if entry else (None, None)
    low, high = scores
    if low is None or high is None:
        raise RldsError(
            f"No reference scores are known for {manifest.id}.", hint="rlds info shows what the registry has"
        )
    return float(low), float(high)
