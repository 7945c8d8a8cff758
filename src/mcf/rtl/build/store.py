"""Results of slow tools are kept in a folder, by the hash of all that went in."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcf.cache import cache_root
from mcf.errors import UserError


def store_folder() -> Path:
    """Return the folder for kept results, in the cache."""
    return cache_root() / "rtl"


@contextmanager
def told(folder: Path) -> Iterator[None]:
    """Say of a cache folder that cannot be written what to do, as a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}): expected a folder with "
            "room for compiled hardware; repair it, or set MCF_CACHE to another folder"
        ) from error


def kept(kind: str, inputs: tuple[str, ...], make: Callable[[], str]) -> str:
    """Return what `make` gave for these inputs, now or earlier. `inputs` must hold all that the result depends on.

    Raises UserError where the folder cannot be written, before anything is made.
    """
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    path = store_folder() / f"{kind}-{digest[:24]}"
    if path.exists():
        return path.read_text(encoding="utf-8")
    with told(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    text = make()
    beside = path.with_suffix(f".{os.getpid()}")
    with told(path.parent):
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)  # whole or not at all, whoever else writes it
    return text
