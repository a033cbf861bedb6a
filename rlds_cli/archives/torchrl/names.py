"""Files of TensorDicts on disk, of TorchRL's replay buffers, and those that an export of rlds adds to them."""

from __future__ import annotations

BUFFER, STORAGE, WRITER = "buffer_metadata.json", "storage_metadata.json", "metadata.json"
META = "meta.json"
DESCRIPTION, METADATA, VERSION = "rlds_episodes.json", "rlds_metadata", 1
BFLOAT16 = "bfloat16"
KNOWN = {
    f"torch.{n}": n
    for n in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
        *("uint16", "uint32", "uint64", "complex64", "complex128", BFLOAT16),
    )
}
_UNSAFE = frozenset('/<>:"|?*\\ %') | {chr(i) for i in (*range(32), 127)}


def encoded(key: str) -> str:
    """Return the name of the file or directory of an entry, as tensordict encodes it."""
    if not key:
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return "".join(f"%{ord(c):02X}" if c in _UNSAFE else c for c in key)
