"""Shapes by name, for planning without a download: no weights, no tokenizer, and no window that a prompt must fit."""

from mcf.model.shape import DTYPE_BYTES, ModelShape

ANY_LENGTH = 2**30  # positions: a plan may ask what a longer window would take
# name -> layers, query heads, KV heads, head size, hidden size, intermediate size, vocabulary; as in their config.json
_SIZES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "llama-3.1-405b": (126, 128, 8, 128, 16384, 53248, 128256),
    "llama-3.1-70b": (80, 64, 8, 128, 8192, 28672, 128256),
    "llama-3.1-8b": (32, 32, 8, 128, 4096, 14336, 128256),
    "llama-3.2-1b": (16, 32, 8, 64, 2048, 8192, 128256),
    "llama-3.2-3b": (28, 24, 8, 128, 3072, 8192, 128256),
    "mistral-7b": (32, 32, 8, 128, 4096, 14336, 32768),
    "qwen2.5-0.5b": (24, 14, 2, 64, 896, 4864, 151936),
    "qwen2.5-1.5b": (28, 12, 2, 128, 1536, 8960, 151936),
    "qwen2.5-14b": (48, 40, 8, 128, 5120, 13824, 152064),
    "qwen2.5-32b": (64, 40, 8, 128, 5120, 27648, 152064),
    "qwen2.5-3b": (36, 16, 2, 128, 2048, 11008, 151936),
    "qwen2.5-72b": (80, 64, 8, 128, 8192, 29568, 152064),
    "qwen2.5-7b": (28, 28, 4, 128, 3584, 18944, 152064),
    "smollm2-135m": (30, 9, 3, 64, 576, 1536, 49152),
}
SHAPE_NAMES = tuple(_SIZES)


def named_shape(name: str, *, dtype: str = "float32") -> ModelShape:
    """Return the shape of that name, KV and activations in `dtype`; KeyError for another name.

    >>> named_shape("qwen2.5-1.5b", dtype="bfloat16").kv_token_bytes
    28672
    """
    layers, q_heads, kv_heads, head, hidden, intermediate, vocab = _SIZES[name]
    return ModelShape(
        name=name,
        num_layers=layers,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_positions=ANY_LENGTH,
        kv_bytes=DTYPE_BYTES[dtype],
        act_bytes=DTYPE_BYTES[dtype],
    )
