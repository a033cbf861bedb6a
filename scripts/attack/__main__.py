"""Attack rlds as strangers would: by datasets, locks, homes, archives, servers, addresses, and through the viewer.

Nothing may come of it.

Usage: python scripts/attack [NAME...] [--quick] [--keep]        default: all attacks

Each attack runs real commands in processes of their own. It fails where a file of the user's is deleted, altered or
copied, a stranger's code is executed, a command ends in a traceback or by a signal, prints control characters, holds
more than 1 GiB, or says nothing for 60 seconds; and where what it calls a refusal was none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.extend(str(Path(__file__).resolve().parents[2] / "tests" / name) for name in ("support", "contract"))

import addresses
import archives
import datasets
import growing
import homes
import locks
import recordings
import scene
import servers
import viewers

ATTACKS = {
    f"{module.__name__}.{name}": attack
    for module in (datasets, growing, locks, homes, archives, recordings, servers, addresses, viewers)
    for name, attack in module.ATTACKS.items()
}
QUICK = [name for name, attack in ATTACKS.items() if getattr(attack, "quick", False)]
COMMANDS = 2  # of each of these


def main() -> int:
    """Run the attacks that the command line names; 1 where one got through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="attacks, or the beginnings of their names")
    parser.add_argument("--quick", action="store_true", help="what a test runs: the beginnings of some")
    parser.add_argument("--keep", action="store_true", help="keep the directories")
    options = parser.parse_args()
    chosen = [n for n in ATTACKS if not options.names or any(n.startswith(word) for word in options.names)]
    if options.quick:
        chosen = [n for n in chosen if n in QUICK]
    root = Path(tempfile.mkdtemp(prefix="rlds-attack-"))
    base = root / "base"
    scene.prepare(base)
    failed = 0
    for name in chosen:
        start = time.monotonic()
        faults = run(name, root / name, base, COMMANDS if options.quick else 1 << 30)
        failed += bool(faults)
        print(f"{'FAILED' if faults else 'held'}  {name}  {time.monotonic() - start:.1f} s", flush=True)
        for fault in faults:
            print(f"        {fault}", flush=True)
    print(f"{len(chosen)} attacks, {failed} got through.")
    if not options.keep:
        shutil.rmtree(root, ignore_errors=True)
    else:
        print(root)
    return 1 if failed else 0


def run(name: str, root: Path, base: Path, commands: int = 1 << 30) -> list[str]:
    """What an attack reached by at most so many commands; nothing, as a rule."""
    at = scene.scene(root, base)
    at.commands = commands
    with suppress(scene.Enough):
        ATTACKS[name](at)
    at.close()
    shutil.rmtree(at.home, ignore_errors=True)
    return at.faults


if __name__ == "__main__":
    sys.exit(main())
