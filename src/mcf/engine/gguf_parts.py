"""Put the parts of a GGUF model together: one file, or `NAME-00001-of-00003.gguf` and its siblings."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcf.engine.gguf_header import GgufHeader, GgufTensor, read_header
from mcf.errors import ModelError

Progress = Callable[[str, float, float], None]
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_HASH_BLOCK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class GgufModel:
    """A whole GGUF model: the first part's metadata and the tensors of all parts."""

    parts: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    def sha256(self, progress: Progress) -> str:
        """Return the sha256 of all parts, one after the other."""
        total = sum(part.stat().st_size for part in self.parts)
        digest, done = hashlib.sha256(), 0
        for part in self.parts:
            with part.open("rb") as file:
                while block := file.read(_HASH_BLOCK_BYTES):
                    digest.update(block)
                    done += len(block)
                    progress("hash", done, total)
        return digest.hexdigest()


def read_model(path: Path) -> GgufModel:
    """Read the headers of a GGUF model, given its only file or its first part.

    Raises `ModelError` for a broken file, a part other than the first, or a missing part.
    """
    first = read_header(path)
    headers = [first, *(_read_part(first, part) for part in _other_parts(first))]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    _check_tensor_count(first, tensors)
    return GgufModel(parts=tuple(h.path for h in headers), metadata=first.metadata, tensors=tensors)


def _split(header: GgufHeader) -> tuple[int, int]:
    """Return (part, number of parts), parts counted from 1."""
    return _whole(header, "split.no", 0) + 1, _whole(header, "split.count", 1) or 1


def _whole(header: GgufHeader, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if not isinstance(value, int):
        raise ModelError(f"{header.path.name} sets {key} to {value!r}: expected a whole number; get the file again")
    return value


def _other_parts(first: GgufHeader) -> list[Path]:
    part, count = _split(first)
    if count == 1:
        return []
    name = _PART_NAME.fullmatch(first.path.name)
    stem = name["stem"] if name else "NAME"
    paths = [first.path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if part != 1:
        raise ModelError(
            f"{first.path.name} is part {part} of {count} of a model: expected part 1; "
            f"give {paths[0].name}, with all {count} parts in one folder"
        )
    if name is None or paths[0] != first.path:
        raise ModelError(
            f"{first.path.name} is part 1 of {count} of a model, but its name does not say so: expected "
            f"NAME-00001-of-{count:05d}.gguf beside the other parts; give the parts their own names back"
        )
    missing = [path.name for path in paths[1:] if not path.exists()]
    if missing:
        raise ModelError(
            f"{first.path.name} is part 1 of {count} of a model, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: expected all parts in one folder; download the rest"
        )
    return paths[1:]


def _read_part(first: GgufHeader, path: Path) -> GgufHeader:
    header = read_header(path)
    expected, (part, count) = int(path.name[-19:-14]), _split(header)
    if (part, count) != (expected, _split(first)[1]):
        raise ModelError(
            f"{path.name} says inside that it is part {part} of {count}: expected part {expected} of "
            f"{_split(first)[1]}; download the part again"
        )
    return header


def _check_tensor_count(first: GgufHeader, tensors: tuple[GgufTensor, ...]) -> None:
    promised = _whole(first, "split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise ModelError(
            f"{first.path.name} and its other parts hold {len(tensors)} tensors: expected {promised}; "
            "the parts do not belong together, download them again"
        )
