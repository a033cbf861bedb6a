"""Whether the content of a dataset makes sense.

>>> from rlds_cli import checks
>>> checks.check("d4rl/antmaze-umaze-diverse-v2").warnings  # doctest: +SKIP
2
"""

from rlds_cli.checks.findings import CheckReport as CheckReport
from rlds_cli.checks.findings import Finding as Finding
from rlds_cli.checks.findings import Place as Place
from rlds_cli.checks.running import check as check
from rlds_cli.checks.running import quick as quick

__all__ = ["CheckReport", "Finding", "Place", "check", "quick"]
