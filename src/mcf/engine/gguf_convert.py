"""Write a GGUF model as a Hugging Face folder: float32 safetensors, config and tokenizer.

The weights are dequantised with the gguf package, one tensor at a time: bit for bit what transformers itself makes of
the same file (a slow test compares them), in a fraction of its time and with one tensor of extra memory.
"""

import json
import os
import struct
import tempfile
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mcf.engine.gguf_config import eos_ids, hf_config, hf_name, restore_rows, weight_shapes
from mcf.engine.gguf_header import GgufTensor
from mcf.engine.gguf_parts import GgufModel, Progress
from mcf.errors import ModelError

WEIGHTS = "model.safetensors"


def plan(model: GgufModel) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    """Return the config and, by transformers' name, the GGUF tensors; reads no tensor data.

    Raises `ModelError` where the file's tensors are not exactly those of the architecture it names.
    """
    config, file = hf_config(model), model.parts[0].name
    expected = weight_shapes(config, model.metadata["general.architecture"])
    found: dict[str, GgufTensor] = {}
    for tensor in model.tensors:
        name = hf_name(tensor.name)
        if name == "":
            continue
        if name is None or name not in expected or name in found:
            what = "twice" if name in found else f"which a {config['model_type']} model does not have"
            raise _mismatch(file, f"holds tensor {tensor.name!r}, {what}")
        if tensor.shape != expected[name]:
            raise _mismatch(file, f"holds {tensor.name!r} of shape {tensor.shape}, not {expected[name]}")
        found[name] = tensor
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise _mismatch(file, f"lacks {len(missing)} of {len(expected)} weights ({missing[0]} first)")
    return config, found


def weight_bytes(tensors: dict[str, GgufTensor]) -> int:
    """Return the size of the converted weights, in bytes."""
    return sum(4 * prod(tensor.shape) for tensor in tensors.values())


def convert(model: GgufModel, folder: Path, progress: Progress) -> None:
    """Write config, tokenizer and weights of the model into an existing empty folder."""
    config, tensors = plan(model)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": eos_ids(model)})
    progress("tokenizer", 0.0, 1.0)
    _write_tokenizer(model, folder)
    progress("tokenizer", 1.0, 1.0)
    with (folder / WEIGHTS).open("wb") as file:
        _write_weights(file, config, model.metadata["general.architecture"], tensors, progress)
        file.flush()
        os.fsync(file.fileno())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_tokenizer(model: GgufModel, folder: Path) -> None:
    """Write the tokenizer, read from a folder that holds nothing else: other files beside the GGUF could win."""
    from transformers import PreTrainedTokenizerFast

    first = model.parts[0]
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as alone:
            warnings.simplefilter("ignore")
            (Path(alone) / first.name).symlink_to(first.resolve())
            PreTrainedTokenizerFast.from_pretrained(alone, gguf_file=first.name).save_pretrained(str(folder))
    except Exception as error:  # transformers raises whatever its parsers raise
        raise ModelError(
            f"the tokenizer in {first.name} cannot be read ({' '.join(str(error).split())}): expected one that "
            "transformers knows; give the model as a Hugging Face folder instead"
        ) from error


def _write_weights(
    file: BinaryIO, config: dict[str, Any], family: str, tensors: dict[str, GgufTensor], progress: Progress
) -> None:
    """Write one safetensors file of float32 tensors (format: the safetensors README)."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 4 * prod(tensor.shape)
        entries[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    file.write(struct.pack("<Q", len(header)) + header)
    done = 0
    for name, values in _dequantised(tensors):
        file.write(np.ascontiguousarray(restore_rows(name, values, config, family), dtype="<f4").data)
        done += values.nbytes
        progress("convert", done, end)


def _dequantised(tensors: dict[str, GgufTensor]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    from gguf import GGMLQuantizationType, dequantize

    for name, tensor in tensors.items():
        kind = GGMLQuantizationType(tensor.ggml_type)
        raw = np.fromfile(tensor.part, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.start_byte)
        try:
            yield name, dequantize(raw, kind).reshape(tensor.shape)
        except NotImplementedError:
            raise ModelError(
                f"{tensor.part.name}: tensor {tensor.name!r} is stored as {kind.name}, which the gguf package cannot "
                "unpack: expected a type it can; take another quantisation of the model, for example Q8_0 or Q4_K_M"
            ) from None


def _mismatch(file: str, what: str) -> ModelError:
    return ModelError(f"{file} {what}: expected exactly the tensors of one whole model; give a complete GGUF file")
