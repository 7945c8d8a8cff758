"""Results of slow tools are kept in a folder, by the hash of all that went in."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path


def store_folder() -> Path:
    """Return the folder for kept results: rtl in $MCF_CACHE, else in $XDG_CACHE_HOME/mcf, else in ~/.cache/mcf."""
    if own := os.environ.get("MCF_CACHE"):
        return Path(own).expanduser() / "rtl"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mcf" / "rtl"


def kept(kind: str, inputs: tuple[str, ...], make: Callable[[], str]) -> str:
    """Return what `make` gave for these inputs, now or earlier. `inputs` must hold all that the result depends on."""
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    path = store_folder() / f"{kind}-{digest[:24]}"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)  # whole or not at all, whoever else writes it
    return text
