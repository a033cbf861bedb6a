"""Formats of datasets, with their loaders, beside ours: litdata, Lance, TensorDict, torchcodec, LeRobot.

``sources`` makes what all of them read, and knows every value; ``files`` writes it in their formats, once; ``readers``
opens it as their documentation advises. The groups: ``rows`` and ``cameras`` from the disk, ``far_rows`` and
``far_cameras`` from a bucket. The first batches of each case are compared with the source before it is timed.
"""

GROUPS = ("formats.rows", "formats.cameras", "formats.far_rows", "formats.far_cameras")
