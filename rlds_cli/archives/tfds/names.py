"""Files of TFDS directories."""

from __future__ import annotations

FEATURES, INFO = "features.json", "dataset_info.json"
