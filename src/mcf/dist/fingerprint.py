"""A fingerprint that tells two models of one shape apart without reading all of them; standard library alone.

A sha256 over config.json (without the fields that only describe it), each tensor's name, type and shape, and the first
and last 4 KiB of each tensor's bytes: a fine-tuned copy has the header of the original, and other numbers. Neither the
files' names nor how the tensors are shared out among them matter.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

EDGE_BYTES = 4096
_MOST_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_DESCRIPTIVE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})


def fingerprint(folder: Path) -> str:
    """Return a sha256 in hex. Raises OSError or ValueError where the folder holds no readable model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    telling = {name: value for name, value in config.items() if name not in _DESCRIPTIVE}
    digest = hashlib.sha256(json.dumps(telling, sort_keys=True).encode())
    tensors = dict(line for path in folder.glob("*.safetensors") for line in _tensors(path))
    if not tensors:
        raise ValueError(f"{folder} has no safetensors files")
    for name, line in sorted(tensors.items()):
        digest.update(f"\n{name} {line}".encode())
    return digest.hexdigest()


def _tensors(path: Path) -> Iterator[tuple[str, str]]:
    """Name and description of each tensor of a safetensors file: 8 bytes of header length, JSON header, data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, _describe(file, 8 + length, entry)


def _describe(file: BinaryIO, start: int, entry: Mapping[str, Any]) -> str:
    begin, end = (start + int(offset) for offset in entry["data_offsets"])
    edges = hashlib.sha256()
    for at in (begin, max(begin, end - EDGE_BYTES)):
        file.seek(at)
        edges.update(file.read(min(EDGE_BYTES, end - at)))
    return f"{entry['dtype']} {entry['shape']} {edges.hexdigest()}"
