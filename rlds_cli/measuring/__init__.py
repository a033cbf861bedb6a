"""How fast a dataset loads on this machine, how much memory it takes, and how near to the limit that is.

>>> from rlds_cli import measuring
>>> measuring.measure("d4rl/hopper-medium-v2", window="Slice(32)", batch_size=8)  # doctest: +SKIP
"""

from rlds_cli.measuring.measurement import Measurement, measure

__all__ = ["Measurement", "measure"]
