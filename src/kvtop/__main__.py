"""`python -m kvtop`."""

from kvtop.cli.main import entry

entry()
