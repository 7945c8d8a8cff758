"""Read and check GGUF headers without touching the tensor data.

Everything that can be wrong with a GGUF file (not a GGUF file at all, cut off, one part of several, parts joined
with `cat`) is found here, from the header and the file's size alone, before anything heavy is imported.
Format: the GGUF specification, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mcf.engine.notmodels import explain_foreign_file
from mcf.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 65_535  # the specification's limit for keys; tensor names are far shorter
MAX_DIMS = 8  # the format allows 4 today

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """Where one tensor lies: `shape` in PyTorch's order, `num_bytes` at `start_byte` of the file `part`."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    part: Path
    start_byte: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """The header of one GGUF file; `end_byte` is where its last tensor ends."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    end_byte: int
    alignment: int


class _CutError(Exception):
    """The file ends before the thing that is being read."""


@dataclass(kw_only=True)
class _Cursor:
    """A bounds-checked reader over the mapped file."""

    data: mmap.mmap
    at: int = 0

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, or raise `_CutError` where the file ends first."""
        if num_bytes > len(self.data) - self.at:
            raise _CutError
        self.at += num_bytes
        return self.data[self.at - num_bytes : self.at]

    def number(self, code: str) -> Any:
        """Return one little-endian number of a struct code."""
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        """Return one length-prefixed string."""
        return self.take(self.number("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """Return one metadata value: a scalar, a string, a list of strings or an array of numbers."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        raise ValueError(f"a metadata value of unknown type {kind}")

    def _array(self) -> Any:
        kind, count = self.number("<I"), self.number("<Q")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"a metadata array of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype)


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of one GGUF file.

    Raises `ModelError` with one line (what is wrong, at which byte, what to do) for a file that is no GGUF file, is
    cut off in its header or its data, or holds several GGUF files joined together.
    """
    explain_foreign_file(path, expected="a GGUF model file")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _parse(path, _Cursor(data=data))
        _check_size(header, data)
    return header


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    doing = "the file's version"
    try:
        num_tensors, num_keys = _read_counts(path, cursor)
        metadata: dict[str, Any] = {}
        for i in range(num_keys):
            doing = f"metadata entry {i + 1} of {num_keys}"
            key = _name(cursor)
            doing += f" ({key})"
            metadata[key] = cursor.value(cursor.number("<I"))
        entries = []
        for i in range(num_tensors):
            doing = f"tensor entry {i + 1} of {num_tensors}"
            entries.append(_tensor_entry(cursor))
    except _CutError:
        size = len(cursor.data)
        raise ModelError(
            f"{path.name} ends at byte {size} inside its header, while reading {doing}: expected a whole GGUF file; "
            "the download was cut off, get the file again"
        ) from None
    except ModelError:
        raise
    except ValueError as error:
        raise _corrupt(path, cursor.at, f"{error} in {doing}") from None
    return _place_tensors(path, cursor.at, metadata, entries)


def _read_counts(path: Path, cursor: _Cursor) -> tuple[int, int]:
    if not MAGIC.startswith(start := cursor.data[: len(MAGIC)]):
        raise ModelError(
            f"{path.name} is not a model file, it starts with {start!r}: expected a GGUF model file (b'GGUF') or a "
            "Hugging Face folder; check what was given"
        )
    cursor.take(len(MAGIC))
    version = cursor.number("<I")
    if version not in VERSIONS:
        why = "a big-endian file" if version & 0xFFFF == 0 and version else f"GGUF version {version}"
        raise ModelError(f"{path.name} is {why}: expected little-endian GGUF version 2 or 3; convert the model again")
    return cursor.number("<Q"), cursor.number("<Q")


def _name(cursor: _Cursor) -> str:
    length = cursor.number("<Q")
    if length > MAX_NAME_BYTES:
        raise ValueError(f"a name of {length} bytes")
    return cursor.take(length).decode("utf-8")


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, num_dims = _name(cursor), cursor.number("<I")
    if num_dims > MAX_DIMS:
        raise ValueError(f"{num_dims} dimensions of {name!r}")
    dims = struct.unpack(f"<{num_dims}Q", cursor.take(8 * num_dims))
    return name, tuple(reversed(dims)), cursor.number("<I"), cursor.number("<Q")


def _place_tensors(
    path: Path, header_end: int, metadata: dict[str, Any], entries: list[tuple[str, tuple[int, ...], int, int]]
) -> GgufHeader:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _corrupt(path, header_end, f"general.alignment {alignment!r} is no power of two")
    data_start = -(-header_end // alignment) * alignment
    tensors = tuple(
        GgufTensor(
            name=name,
            shape=shape,
            ggml_type=ggml_type,
            part=path,
            start_byte=data_start + offset,
            num_bytes=_num_bytes(path, name, shape, ggml_type),
        )
        for name, shape, ggml_type, offset in entries
    )
    end_byte = max((t.start_byte + t.num_bytes for t in tensors), default=header_end)
    return GgufHeader(path=path, metadata=metadata, tensors=tensors, end_byte=end_byte, alignment=alignment)


def _num_bytes(path: Path, name: str, shape: tuple[int, ...], ggml_type: int) -> int:
    sizes = _block_sizes()
    if ggml_type not in sizes:
        raise ModelError(
            f"{path.name}: tensor {name!r} has ggml type {ggml_type}, which the installed gguf package does not know: "
            "expected one of its types; update gguf, or take another quantisation of the model"
        )
    per_block, block_bytes = sizes[ggml_type]
    if prod(shape) % per_block or (shape and shape[-1] % per_block):
        raise _corrupt(path, 0, f"tensor {name!r} of shape {shape} does not divide into blocks of {per_block}")
    return prod(shape) // per_block * block_bytes


def _block_sizes() -> dict[int, tuple[int, int]]:
    """Return (values, bytes) per block for each ggml type number, from the gguf package."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError:
        raise ModelError("a GGUF file needs the gguf package: got none installed; do `pip install gguf`") from None
    return {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}


def _check_size(header: GgufHeader, data: mmap.mmap) -> None:
    size, end = len(data), header.end_byte
    if size < end:
        tensor = next(t for t in header.tensors if t.start_byte + t.num_bytes > size)
        raise ModelError(
            f"{header.path.name} ends at byte {size}, inside tensor {tensor.name!r}: expected {end} bytes, as its "
            f"header says ({end - size} are missing); the download was cut off, get the file again"
        )
    for second in {end, -(-end // header.alignment) * header.alignment}:
        if data[second : second + 4] == MAGIC:
            raise ModelError(
                f"{header.path.name} holds several GGUF files joined together: a second header starts at byte "
                f"{second}; expected one file per part; keep the parts apart and give the first one"
            )


def _corrupt(path: Path, at: int, why: str) -> ModelError:
    where = f" near byte {at}" if at else ""
    return ModelError(f"{path.name} is corrupt{where}: {why}; expected a valid GGUF header; get the file again")
