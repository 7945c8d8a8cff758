"""`ModelShape`: layers, heads, sizes and bytes per element, from the dict of a Hugging Face `config.json`."""

from dataclasses import dataclass

from mcf.errors import ModelError, UnknownNameError
from mcf.model.fields import Config, check_size, kind, size
from mcf.model.rope import max_positions
from mcf.model.support import check_supported

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
INT4_BYTES = 0.5

# Head sizes that transformers takes where config.json leaves the key out (checked against it by a test).
_HEAD_DIM = {"gemma": 256, "glm": 128, "glm4": 128, "qwen3": 128}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder-only model with grouped-query attention.

    `max_positions` is the usable window in tokens, RoPE scaling included. `kv_bytes` and `act_bytes` are bytes per
    element of the KV cache and of activations; `kv_bytes` may be 0.5 (INT4). Quantised KV has scales: `kv_scale_bytes`
    for one token's keys in one KV head, and as many for its values (2: one in fp16 per head). Raises `ModelError` for
    sizes that cannot be.
    """

    name: str
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    kv_bytes: float = 4
    act_bytes: int = 4
    kv_scale_bytes: int = 0

    def __post_init__(self) -> None:
        """Check that all sizes are whole and at least 1, and that query heads fill their KV groups."""
        for field, value in vars(self).items():
            if (field, value) not in (("kv_bytes", INT4_BYTES), ("kv_scale_bytes", 0)) and field != "name":
                check_size(field, value)
        if self.num_q_heads % self.num_kv_heads:
            raise ModelError(
                f"got {self.num_q_heads} query heads for {self.num_kv_heads} KV heads: "
                "expected a multiple, as grouped-query attention needs"
            )

    @property
    def kv_token_layer_bytes(self) -> int:
        """KV bytes of one token in one layer: m_l = 2 * num_kv_heads * (head_dim * kv_bytes + kv_scale_bytes)."""
        return int(2 * self.num_kv_heads * (self.head_dim * self.kv_bytes + self.kv_scale_bytes))

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes of one token in all layers (eq. 1)."""
        return self.num_layers * self.kv_token_layer_bytes

    @property
    def num_group_heads(self) -> int:
        """Query heads that share one KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def num_attention_weights(self) -> int:
        """Weights of one layer's four attention projections, without biases and norms."""
        return 2 * self.hidden_size * self.head_dim * (self.num_q_heads + self.num_kv_heads)

    @property
    def num_mlp_weights(self) -> int:
        """Weights of one layer's gated MLP (gate, up, down), without biases; of one expert in a mixture."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def num_layer_weights(self) -> int:
        """Weights of one layer's attention and MLP."""
        return self.num_attention_weights + self.num_mlp_weights

    @property
    def num_weights(self) -> int:
        """Weights of all layers and of one embedding table; an output head of its own comes on top."""
        return self.num_layers * self.num_layer_weights + self.vocab_size * self.hidden_size

    @classmethod
    def from_config(cls, config: Config, *, dtype: str = "float32", name: str = "") -> "ModelShape":
        """Read a shape from a `config.json` dict; KV and activations are of type `dtype`.

        Raises `ModelError` for a config that MCF does not support or that lacks a size, and `UnknownNameError` for an
        unknown dtype.
        """
        check_supported(config)
        if dtype not in DTYPE_BYTES:
            raise UnknownNameError("dtype", dtype, DTYPE_BYTES)
        num_q_heads = size(config, "num_attention_heads")
        hidden_size = size(config, "hidden_size")
        return cls(
            name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
            num_layers=size(config, "num_hidden_layers"),
            num_q_heads=num_q_heads,
            num_kv_heads=size(config, "num_key_value_heads", num_q_heads),
            head_dim=size(config, "head_dim", _default_head_dim(config, hidden_size, num_q_heads)),
            hidden_size=hidden_size,
            intermediate_size=size(config, "intermediate_size"),
            vocab_size=size(config, "vocab_size"),
            max_positions=max_positions(config),
            kv_bytes=DTYPE_BYTES[dtype],
            act_bytes=DTYPE_BYTES[dtype],
        )


def _default_head_dim(config: Config, hidden_size: int, num_q_heads: int) -> int:
    if kind(config) in _HEAD_DIM and "head_dim" not in config:
        return _HEAD_DIM[kind(config)]
    if config.get("head_dim") is None and hidden_size % num_q_heads:
        raise ModelError(
            f"got hidden_size {hidden_size} for {num_q_heads} heads and no head_dim in config.json: expected a multiple"
        )
    return hidden_size // num_q_heads
