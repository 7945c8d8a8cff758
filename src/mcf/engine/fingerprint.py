"""What tells one model from another without reading all of it: hosts compare it before any weight is loaded.

A sha256 over the config (without the fields that only describe it), each tensor's name, type and shape, and the first
and last 4 KiB of each tensor's bytes. Neither the files' names nor how tensors are shared out among them matter.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mcf.engine.folder import read_config, safetensors_header, weight_files

EDGE_BYTES = 4096
_DESCRIPTIVE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"})


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of the safetensors model in a folder, in hex. Raises ModelError."""
    config = {name: value for name, value in read_config(folder).items() if name not in _DESCRIPTIVE}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    tensors = {name: line for path in weight_files(folder) for name, line in _tensors(path)}
    for name in sorted(tensors):
        digest.update(b"\n%s %s" % (name.encode(), tensors[name]))
    return digest.hexdigest()


def _tensors(path: Path) -> Iterator[tuple[str, bytes]]:
    header = safetensors_header(path)
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, _line(file, start, entry)


def _line(file: Any, start: int, entry: Mapping[str, Any]) -> bytes:
    begin, end = (start + int(offset) for offset in entry["data_offsets"])
    edges = hashlib.sha256()
    for at in (begin, max(begin, end - EDGE_BYTES)):
        file.seek(at)
        edges.update(file.read(min(EDGE_BYTES, end - at)))
    return f"{entry['dtype']} {entry['shape']} {edges.hexdigest()}".encode()
