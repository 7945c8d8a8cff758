"""What a model asks of each worker's memory, before any of it is loaded."""

from math import prod
from pathlib import Path

from mcf.engine.doctor.survey import Needs
from mcf.engine.folder import safetensors_header, weight_files
from mcf.engine.planner import RUN_TOKENS
from mcf.model import DTYPE_BYTES, ModelShape

PROCESS_BYTES = 400 << 20  # Python, torch and transformers imported, measured on Linux; shared pages count once more
ROW_COPIES = 3  # of a layer's widest activations that are alive at once: input, output and one between


def needs_of(shape: ModelShape, folder: Path, *, dtype: str, kv_bytes: int | None) -> Needs:
    """Return the needs of a checked model folder; reads headers alone."""
    return Needs(
        weight_bytes=num_weights(folder) * DTYPE_BYTES[dtype],
        buffer_bytes=PROCESS_BYTES + buffer_bytes(shape, RUN_TOKENS),
        kv_bytes=kv_bytes,
        kv_token_bytes=shape.kv_token_bytes,
        dtype=dtype,
    )


def num_weights(folder: Path) -> int:
    """Count the numbers in a folder's weights files by their headers."""
    headers = (safetensors_header(path) for path in weight_files(folder))
    tensors = (entry for header in headers for name, entry in header.items() if name != "__metadata__")
    return sum(prod(entry["shape"]) for entry in tensors)


def buffer_bytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of activations for that many tokens, and of the logits of one."""
    heads = shape.head_dim * (shape.num_q_heads + 2 * shape.num_kv_heads)
    row = shape.hidden_size + 2 * shape.intermediate_size + heads
    return ROW_COPIES * tokens * row * shape.act_bytes + 4 * shape.vocab_size
