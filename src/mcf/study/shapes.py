"""Models by name: their shapes alone, as the public `config.json` of each says. No weights, no network."""

from mcf.errors import UnknownNameError
from mcf.model import INT4_BYTES, ModelShape

_INT4 = "-int4"
_BF16_BYTES = 2

# layers, query heads, KV heads, head size, hidden, intermediate, vocabulary, window
_SIZES: dict[str, tuple[int, int, int, int, int, int, int, int]] = {
    "llama-3.1-8b": (32, 32, 8, 128, 4096, 14336, 128256, 131072),
    "llama-3.1-70b": (80, 64, 8, 128, 8192, 28672, 128256, 131072),
    "mistral-7b": (32, 32, 8, 128, 4096, 14336, 32768, 32768),
    "qwen2.5-0.5b": (24, 14, 2, 64, 896, 4864, 151936, 32768),
    "qwen2.5-1.5b": (28, 12, 2, 128, 1536, 8960, 151936, 131072),
    "qwen2.5-7b": (28, 28, 4, 128, 3584, 18944, 152064, 131072),
    "qwen3-8b": (36, 32, 8, 128, 4096, 12288, 151936, 40960),
    "smollm2-135m": (30, 9, 3, 64, 576, 1536, 49152, 8192),
}
NAMES = tuple(sorted(name + kv for name in _SIZES for kv in ("", _INT4)))


def load_shape(name: str) -> ModelShape:
    """The shape of a named model: KV and activations in bfloat16; with `-int4` behind the name, KV in INT4.

    Raises UnknownNameError with the nearest name.
    """
    if name not in NAMES:
        raise UnknownNameError("model shape", name, NAMES)
    layers, q_heads, kv_heads, head_dim, hidden, intermediate, vocab, window = _SIZES[name.removesuffix(_INT4)]
    return ModelShape(
        name=name,
        num_layers=layers,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=intermediate,
        vocab_size=vocab,
        max_positions=window,
        kv_bytes=INT4_BYTES if name.endswith(_INT4) else _BF16_BYTES,
        act_bytes=_BF16_BYTES,
    )
