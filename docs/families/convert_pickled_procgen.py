"""Turn a tar of pickled Procgen episodes into a tar of npz, which needs no unpickling.

Usage: python convert_pickled_procgen.py pickled.tar.xz converted.tar

Unpickling runs whatever the writer of the file put there. Run this in a sandbox: no network, no home, no keys.
"""

import io
import sys
import tarfile

import numpy as np


def main(source: str, target: str) -> None:
    """Read members one after the other; those that are no pickled dict of arrays are left out, and named."""
    with tarfile.open(source, "r|*") as old, tarfile.open(target, "w") as new:
        for member in old:
            old.members = []  # else it keeps an object for every member
            if not member.isreg() or not member.name.endswith((".npy", ".pkl")):
                continue
            try:
                episode = np.load(io.BytesIO(old.extractfile(member).read()), allow_pickle=True)
                columns = {k: np.asarray(v) for k, v in np.asarray(episode).item().items()}
            except Exception as error:
                print(f"left out {member.name}: {error}", file=sys.stderr)
                continue
            packed = io.BytesIO()
            np.savez_compressed(packed, **columns)
            info = tarfile.TarInfo(member.name.rpartition(".")[0] + ".npz")
            info.size = packed.tell()
            packed.seek(0)
            new.addfile(info, packed)


if __name__ == "__main__":
    main(*sys.argv[1:3])
