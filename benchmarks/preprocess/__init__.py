"""``rlds preprocess`` and ``rlds inspect`` against TorchRL's ``preprocess`` and against what NumPy alone takes.

``data`` makes the datasets, ``functions`` are what is applied to them, ``working`` does one thing in a process of its
own and says how long it took, one module per group holds what is compared with what and which rows follow.
"""

GROUPS = ("vectorised", "steps", "workers", "outcome", "inspecting")
