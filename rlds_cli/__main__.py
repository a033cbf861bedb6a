"""``python -m rlds_cli``."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current directory: only `--fn` imports from it

from rlds_cli.cli import main

if __name__ == "__main__":
    main()
