"""Where results that take long are kept: one folder for all of MCF."""

import os
from pathlib import Path


def cache_root() -> Path:
    """Return the cache root: $MCF_CACHE, else $XDG_CACHE_HOME/mcf, else ~/.cache/mcf."""
    if own := os.environ.get("MCF_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mcf"
