"""``python -m rlds_cli``."""

from rlds_cli.cli import main

if __name__ == "__main__":
    main()
