"""Datasets from datasets: a function applied to every episode, batch or step.

>>> from rlds_cli import preprocess
>>> ds = preprocess.run("d4rl/hopper-medium-v2", "my_prep:norm", jobs=4)  # doctest: +SKIP
"""

from rlds_cli.preprocess.functions import unit as unit
from rlds_cli.preprocess.running import run as run
from rlds_cli.preprocess.trial import Report as Report
from rlds_cli.preprocess.trial import attempt as attempt

__all__ = ["Report", "attempt", "run", "unit"]
