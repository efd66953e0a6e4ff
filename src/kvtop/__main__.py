"""`python -m kvtop`, and the console script."""

import sys

from kvtop import interrupt


def entry() -> None:
    """Run the command line. ctrl-c ends it without a word, also while it is still being imported."""
    try:
        interrupt.at_once()
        from kvtop.cli.main import entry as begin

        begin()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    entry()
