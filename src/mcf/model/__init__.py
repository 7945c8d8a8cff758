"""The shape of a model, from a Hugging Face `config.json` dict; and which models MCF refuses, by name."""

from mcf.model.named import SHAPE_NAMES, named_shape
from mcf.model.rope import ROPE_TYPES, max_positions
from mcf.model.shape import DTYPE_BYTES, INT4_BYTES, ModelShape
from mcf.model.support import check_supported

__all__ = [
    "DTYPE_BYTES",
    "INT4_BYTES",
    "ROPE_TYPES",
    "SHAPE_NAMES",
    "ModelShape",
    "check_supported",
    "max_positions",
    "named_shape",
]
