"""The command line: `mcf run`, `mcf plan`, `mcf show`. Answers go to stdout, everything else to stderr."""

from mcf.cli.entry import main

__all__ = ["main"]
