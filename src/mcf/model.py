"""The shape of a model: layers, heads, sizes and bytes per element; and which models MCF refuses, by name.

A shape comes from the dict of a Hugging Face `config.json`; the window and a head size that it leaves out are those
that transformers gives. `check_supported` knows every kind of attention that MCF would compute wrongly, and says so
before any weight is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcf.errors import ModelError, UnknownNameError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

Config = Mapping[str, Any]

# Values that transformers takes where config.json leaves a key out (checked against it by a test).
_HEAD_DIM = {"gemma": 256, "glm": 128, "glm4": 128, "qwen3": 128}
_SLIDES_UNLESS_TOLD = {"cohere2", "exaone4", "gemma2", "gemma3_text", "ministral", "mistral"}

_SINKS = {"gpt_oss"}
_LATENT = {"deepseek_v2", "deepseek_v3", "deepseek_v4", "minicpm3"}
_ALIBI = {"bloom", "mpt"}
_RECURRENT = {"falcon_mamba", "mamba", "mamba2", "minimax", "qwen3_next", "recurrent_gemma", "rwkv"}
# Keys that only configs with such layers have.
_RECURRENT_KEYS = {"hybrid_override_pattern", "layers_block_type", "linear_num_key_heads", "mamba_d_conv", "ssm_cfg"}
_RECURRENT_LAYERS = {"conv", "linear_attention", "mamba", "mamba2", "recurrent"}
_PLAIN_LAYERS = {"attention", "full_attention"}


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder-only model with grouped-query attention.

    `max_positions` is the usable window in tokens, RoPE scaling included. `kv_bytes` and `act_bytes` are bytes per
    element of the KV cache and of activations. Raises `ModelError` for sizes that cannot be.
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
    kv_bytes: int = 4
    act_bytes: int = 4

    def __post_init__(self) -> None:
        """Check that all sizes are whole and at least 1, and that query heads fill their KV groups."""
        for field, value in vars(self).items():
            if field != "name":
                _check_size(field, value)
        if self.num_q_heads % self.num_kv_heads:
            raise ModelError(
                f"got {self.num_q_heads} query heads for {self.num_kv_heads} KV heads: "
                "expected a multiple, as grouped-query attention needs"
            )

    @property
    def kv_token_layer_bytes(self) -> int:
        """KV bytes of one token in one layer: m_l = 2 * num_kv_heads * head_dim * kv_bytes."""
        return 2 * self.num_kv_heads * self.head_dim * self.kv_bytes

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
        num_q_heads = _size(config, "num_attention_heads")
        hidden_size = _size(config, "hidden_size")
        return cls(
            name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
            num_layers=_size(config, "num_hidden_layers"),
            num_q_heads=num_q_heads,
            num_kv_heads=_size(config, "num_key_value_heads", num_q_heads),
            head_dim=_size(config, "head_dim", _default_head_dim(config, hidden_size, num_q_heads)),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size"),
            vocab_size=_size(config, "vocab_size"),
            max_positions=max_positions(config),
            kv_bytes=DTYPE_BYTES[dtype],
            act_bytes=DTYPE_BYTES[dtype],
        )


def check_supported(config: Config) -> None:
    """Raise `ModelError` naming the first thing in config that MCF does not do yet; return where there is none."""
    for reason in _refusals(config):
        kind = config.get("model_type") or "unknown type"
        raise ModelError(
            f"got a model ({kind}) with {reason}: expected a decoder-only model with full causal attention"
        )
    for rope in _rope_params(config):
        _check_rope(rope)


def max_positions(config: Config) -> int:
    """Give the window in tokens that config announces, RoPE scaling included.

    `linear` and `yarn` stretch the pre-training window by their factor. `llama3` configs already name the stretched
    window. YaRN without a factor takes its factor from the two windows.
    """
    announced = _size(config, "max_position_embeddings")
    return min((_stretched(rope, config, announced) for rope in _rope_params(config)), default=announced)


def _refusals(config: Config) -> Iterator[str]:
    yield from _kind_refusals(config)
    yield from _attention_refusals(config)
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "unknown")
        yield f"quantized weights ({method})"


def _kind_refusals(config: Config) -> Iterator[str]:
    if config.get("is_encoder_decoder"):
        yield "an encoder and a decoder"
    if config.get("text_config") or config.get("vision_config") or config.get("audio_config"):
        yield "more than text (a multimodal model)"
    names = config.get("architectures") or []
    if names and not any(str(name).endswith("ForCausalLM") for name in names):
        yield f"architecture {names[0]} (not ...ForCausalLM)"


def _attention_refusals(config: Config) -> Iterator[str]:
    kind = config.get("model_type")
    if config.get("kv_lora_rank") or kind in _LATENT:
        yield "multi-head latent attention (MLA)"
    if kind in _RECURRENT or _RECURRENT_KEYS & set(config) or _layer_types(config) & _RECURRENT_LAYERS:
        yield "linear attention or state-space layers"
    if config.get("attn_logit_softcapping") or (kind == "gemma2" and "attn_logit_softcapping" not in config):
        yield "attention logit soft-capping"
    if kind in _SINKS:
        yield "attention sinks"
    if _slides(config):
        yield f"sliding-window attention (window {config.get('sliding_window') or 'by default'})"
    if config.get("alibi") or kind in _ALIBI:
        yield "ALiBi position biases"
    if config.get("use_bidirectional_attention"):
        yield "bidirectional attention"
    if config.get("num_kv_shared_layers") or config.get("block_configs"):
        yield "layers that differ in their attention"
    if config.get("attention_chunk_size") or kind == "llama4_text":
        yield "chunked local attention"
    if config.get("index_topk"):
        yield "sparse attention"
    others = _layer_types(config) - _PLAIN_LAYERS
    if others:
        yield f"layers of type {', '.join(sorted(others))}"


def _slides(config: Config) -> bool:
    if "sliding_attention" in _layer_types(config):
        return True
    if config.get("use_sliding_window") is False:
        return False
    told = "sliding_window" in config or config.get("layer_types")
    return bool(config.get("sliding_window")) or (config.get("model_type") in _SLIDES_UNLESS_TOLD and not told)


def _layer_types(config: Config) -> set[str]:
    return {str(kind) for kind in config.get("layer_types") or ()}


def _rope_params(config: Config) -> list[Config]:
    """List the RoPE dicts: one, none, or one for each layer type. The older `rope_scaling` wins, as in transformers."""
    params = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(params, Mapping):
        raise ModelError(f"got {params!r} as RoPE parameters in config.json: expected an object with a rope_type")
    nested = [value for value in params.values() if isinstance(value, Mapping)]
    return nested or ([params] if params else [])


def _rope_type(rope: Config) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _check_rope(rope: Config) -> None:
    kind = _rope_type(rope)
    if kind in ("dynamic", "longrope"):
        raise ModelError(
            f"got RoPE type {kind!r}, whose angles depend on the length of each call: expected one of "
            f"{', '.join(ROPE_TYPES)}"
        )
    if kind not in ROPE_TYPES or rope.get("mrope_section"):
        raise ModelError(f"got unknown RoPE type {kind!r}: expected one of {', '.join(ROPE_TYPES)}")
    factor = rope.get("factor")
    if kind == "default":
        if factor not in (None, 1, 1.0):
            raise ModelError(f"got a RoPE factor of {factor!r} without a rope_type: expected one of {ROPE_TYPES[1:]}")
    elif not _is_factor(factor) and not (kind == "yarn" and factor is None):
        raise ModelError(f"got {factor!r} as the factor of RoPE type {kind!r}: expected a number of at least 1")


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < float("inf")


def _stretched(rope: Config, config: Config, announced: int) -> int:
    if _rope_type(rope) not in ("linear", "yarn") or rope.get("factor") is None:
        return announced
    key = "original_max_position_embeddings"
    original = _size(config, key, _size(rope, key, announced))
    return int(original * float(rope["factor"]))


def _default_head_dim(config: Config, hidden_size: int, num_q_heads: int) -> int:
    if config.get("model_type") in _HEAD_DIM and "head_dim" not in config:
        return _HEAD_DIM[config["model_type"]]
    if config.get("head_dim") is None and hidden_size % num_q_heads:
        raise ModelError(
            f"got hidden_size {hidden_size} for {num_q_heads} heads and no head_dim in config.json: expected a multiple"
        )
    return hidden_size // num_q_heads


def _size(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"got no {key!r} in config.json: expected a whole number of at least 1")
        return default
    return _check_size(key, value)


def _check_size(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"got {value!r} as {field}: expected a whole number of at least 1")
    return value
