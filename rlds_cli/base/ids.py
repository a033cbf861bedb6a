"""Dataset ids: ``family/name[@variant]``, each one path component below its family."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlds_cli.errors import FrameError, InvalidId

_ID = re.compile(
    r"(?P<family>[a-z0-9][a-z0-9_-]*)"
    r"/(?P<name>[A-Za-z0-9_][A-Za-z0-9._-]*(?:/[A-Za-z0-9_][A-Za-z0-9._-]*)*)"
    r"(?:@(?P<variant>[A-Za-z0-9_][A-Za-z0-9._-]*))?"
)
FINGERPRINT = "rlds1:"  # begins one
LOCAL = "local"  # the family of what is imported or made here; no registry has it
FRAME_CODECS = ("jpeg", "png")  # in which raw frames are stored when they are asked for
FRAME_SIZE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3})")
MAX_LENGTH = 200  # an id is one file name, with room for prefixes and endings
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:/")  # a Path collapses the second slash
_HUB = re.compile(
    r"(hf:/+|https?:/+(huggingface\.co|hf\.co)/)(datasets/)?(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+)"
)
_VARIANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class DatasetId:
    """A parsed id; ``str()`` gives it back."""

    family: str
    name: str
    variant: str | None = None

    def __str__(self) -> str:
        base = f"{self.family}/{self.name}"
        return f"{base}@{self.variant}" if self.variant else base

    @property
    def base(self) -> DatasetId:
        """The id without its variant."""
        return DatasetId(self.family, self.name)

    @property
    def component(self) -> str:
        """Directory name below the family. It is a single component, so that no dataset lies inside another."""
        name = self.name.replace("/", "+")
        return f"{name}@{self.variant}" if self.variant else name

    def with_variant(self, variant: str) -> DatasetId:
        """Return the id of a variant of this dataset; raises InvalidId for an invalid name."""
        if not _VARIANT.fullmatch(variant):
            raise InvalidId(
                f'"{variant}" cannot name a variant.', hint="letters, digits, `_`, `.` and `-`, no leading dot"
            )
        return parse(f"{self.base}@{variant}")


def parse(text: str) -> DatasetId:
    """Parse an id.

    Raises
    ------
    InvalidId
        The text is not an id, such as an absolute path, ``..``, or text that needs quoting in a shell.
    """
    match = _ID.fullmatch(text)
    if match is not None and len(text) > MAX_LENGTH:
        raise InvalidId(f"{text[:40]}... has {len(text):,} characters; an id has at most {MAX_LENGTH}.")
    if match is None and (address := address_hint(text)):
        raise InvalidId(f'"{text}" is an address, not the id of a dataset.', hint=address)
    if match is None and "#" in text and _ID.fullmatch(text.partition("#")[0]):
        id, _, version = text.partition("#")
        raise InvalidId(f'"{text}" names a version, where a dataset is meant.', hint=f"{id} without #{version}")
    if match is None:
        own = f", or local/{text} for your own" if _ID.fullmatch(f"local/{text}") else ""
        raise InvalidId(
            f'"{text}" is not a dataset id.',
            hint=f"ids are family/name or family/name@variant, as in d4rl/hopper-medium-v2{own}; rlds list shows them",
        )
    return DatasetId(match["family"], match["name"], match["variant"])


def written(ref: str) -> DatasetId:
    """Parse an id as users write it, with the family in any case.

    Raises
    ------
    InvalidId
        The text is not an id.
    """
    family, slash, rest = ref.strip().partition("/")
    return parse(f"{family.lower()}{slash}{rest}")


def address_hint(text: str) -> str | None:
    """Return a hint for an address such as ``hf://...`` or ``s3://...``; None for other text."""
    match = _ADDRESS.match(text)
    if match is None:
        return None
    address = text.replace("://", ":/", 1).replace(":/", "://", 1)
    pushed = f"rlds download {address} --name local/NAME fetches a dataset that was pushed there"
    fetched = "rlds import PATH --name local/NAME takes downloaded files of others"
    id = lerobot_id(text)
    known = "datasets are read from this disk: " if id is None else f"rlds download {id} fetches a LeRobot dataset; "
    return f"{known}{pushed}; {fetched}"


def lerobot_id(address: str) -> str | None:
    """Return the id that a repository of the hub has if it is a LeRobot dataset; None for other addresses."""
    hub = _HUB.match(address)
    return hub and f"lerobot/{hub['name'].removeprefix('lerobot/')}"


def from_component(family: str, component: str) -> DatasetId:
    """Return the id of a directory ``datasets/<family>/<component>``."""
    return parse(f"{family}/{component.replace('+', '/')}")


def frames_variant(frames: str) -> str | None:
    """Return the variant that holds frames otherwise than published; None for ``encoded``.

    Raises
    ------
    FrameError
        ``frames`` is none of ``encoded``, ``raw``, ``jpeg``, ``png``, ``HxW``.
    """
    if frames == "encoded":
        return None
    if frames not in ("raw", *FRAME_CODECS) and not FRAME_SIZE.fullmatch(frames):
        codecs = ", ".join(f'"{codec}"' for codec in FRAME_CODECS)
        raise FrameError(f'frames must be "encoded", "raw", {codecs} or a size such as "84x84", not "{frames}".')
    return frames


def local_name(id: str) -> str:
    """Return the id under which a copy of the dataset ``id`` is kept: its own if it is ``local/...``."""
    try:
        parsed = parse(id)
    except InvalidId:
        return "local/NAME"
    if parsed.family == LOCAL:
        return id
    name = parsed.name.replace("/", "-")
    return f"{LOCAL}/{name}" + (f"-{parsed.variant}" if parsed.variant else "")
