"""`python -m mcf` is the `mcf` command."""

import sys

from mcf.cli import main

if __name__ == "__main__":
    sys.exit(main())
