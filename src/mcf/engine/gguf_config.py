"""Turn GGUF metadata and tensor names into a Hugging Face config and weight names.

Names and layouts: the GGUF specification and llama.cpp's converters. Only families whose GGUF form is known to say
everything the model needs are here; anything else is refused by name rather than loaded half right.
"""

import re
from dataclasses import dataclass
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.engine.gguf_parts import GgufModel
from mcf.errors import ModelError

ROPE_FACTORS = "rope_freqs.weight"  # Llama 3's RoPE scaling, one divisor per frequency
# All Llama 3.1 to 3.3 models share these; their `factor` (8 or 32) is the largest divisor in the file.
_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_IGNORED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd")  # positions only, no weights
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What a GGUF architecture is called by transformers, and whether its Q and K rows are interleaved."""

    model_type: str
    class_name: str
    interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False


FAMILIES = {
    "llama": _Family(model_type="llama", class_name="LlamaForCausalLM", interleaved=True),
    "qwen2": _Family(model_type="qwen2", class_name="Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": _Family(model_type="qwen3", class_name="Qwen3ForCausalLM", qk_norm=True),
}


def hf_config(model: GgufModel) -> dict[str, Any]:
    """Return the `config.json` that this GGUF describes, or raise `ModelError` naming what cannot be carried over."""
    meta = _Metadata(model)
    family = meta.family
    heads, hidden = meta.count("attention.head_count"), meta.count("embedding_length")
    head_dim = meta.count("attention.key_length", hidden // heads)
    meta.require("attention.value_length", head_dim)
    meta.require("rope.dimension_count", head_dim)
    meta.require("expert_count", 0)
    names = {tensor.name for tensor in model.tensors}
    config = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta.count("feed_forward_length"),
        "num_hidden_layers": meta.num_layers(),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.count("context_length"),
        "rms_norm_eps": float(meta.number("attention.layer_norm_rms_epsilon", None)),
        "rope_parameters": _rope(meta, head_dim),
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": meta.vocab_size(),
        "bos_token_id": meta.token_id("bos"),
        "eos_token_id": meta.token_id("eos"),
        "pad_token_id": meta.token_id("padding"),
        "dtype": "float32",
    }
    if family.model_type == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in names
    return config


def eos_ids(model: GgufModel) -> list[int]:
    """Return every token id that the file calls an end of text, of turn or of message."""
    ids = (model.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return sorted({i for i in ids if isinstance(i, int)})


def weight_shapes(config: dict[str, Any], family: str) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every weight that transformers expects for this config."""
    hidden, mid, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.gate_proj.weight": (mid, hidden),
        "mlp.up_proj.weight": (mid, hidden),
        "mlp.down_proj.weight": (hidden, mid),
    }
    if FAMILIES[family].qkv_bias or config.get("attention_bias"):
        block |= {f"self_attn.{x}_proj.bias": (size,) for x, size in (("q", q), ("k", kv), ("v", kv))}
    if config.get("attention_bias"):
        block["self_attn.o_proj.bias"] = (hidden,)
    if FAMILIES[family].qk_norm:
        block |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def hf_name(name: str) -> str | None:
    """Return the transformers name of a GGUF tensor, "" for one that is not a weight, None for an unknown one."""
    if _IGNORED.match(name):
        return ""
    block = _BLOCK.fullmatch(name)
    if block is None or block[2] not in _BLOCK_NAMES:
        return _TOP_NAMES.get(name)
    return f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.{block[3]}"


def restore_rows(name: str, values: NDArray[np.float32], config: dict[str, Any], family: str) -> NDArray[np.float32]:
    """Undo the interleaving of rotary halves that llama.cpp applies to Q and K rows of the llama family."""
    if not FAMILIES[family].interleaved or not name.endswith(tuple(f"{x}_proj.{y}" for x in "qk" for y in _KINDS)):
        return values
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


_KINDS = ("weight", "bias")


class _Metadata:
    """Reads the keys of one architecture; every refusal names the file and the key."""

    def __init__(self, model: GgufModel) -> None:
        self.model = model
        self.file = model.parts[0].name
        self.arch = str(model.metadata.get("general.architecture", "missing"))
        if self.arch not in FAMILIES:
            raise ModelError(
                f"{self.file} holds a model of GGUF architecture {self.arch!r}: expected one of "
                f"{', '.join(FAMILIES)}; give the model as a Hugging Face folder of safetensors instead"
            )
        self.family = FAMILIES[self.arch]

    def text(self, key: str, default: str) -> str:
        return str(self.model.metadata.get(f"{self.arch}.{key}", default))

    def number(self, key: str, default: float | None) -> float:
        value = self.model.metadata.get(f"{self.arch}.{key}", default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            got = {type(None): "nothing", np.ndarray: "one value per layer"}.get(type(value), repr(value)[:40])
            raise ModelError(
                f"{self.file} gives {got} for {self.arch}.{key}: expected one number; "
                "give the model as a Hugging Face folder of safetensors instead"
            )
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value < 1 or value != int(value):
            raise ModelError(
                f"{self.file} sets {self.arch}.{key} to {value}: expected a whole number of at least 1; "
                "get the file again"
            )
        return int(value)

    def num_layers(self) -> int:
        count = self.count("block_count")
        if count > len(self.model.tensors):
            raise ModelError(
                f"{self.file} claims {count} layers: expected no more than its {len(self.model.tensors)} tensors; "
                "give a complete GGUF file"
            )
        return count

    def require(self, key: str, expected: float) -> None:
        value = self.number(key, expected)
        if value != expected:
            raise ModelError(
                f"{self.file} sets {self.arch}.{key} to {value}: expected {expected}, the only value supported for "
                "GGUF files; give the model as a Hugging Face folder of safetensors instead"
            )

    def vocab_size(self) -> int:
        embedding = next((t for t in self.model.tensors if t.name == "token_embd.weight"), None)
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(
                f"{self.file} has no token_embd.weight of two dimensions: expected a whole language model; "
                "give a complete GGUF file"
            )
        return embedding.shape[0]

    def token_id(self, name: str) -> int | None:
        value = self.model.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) else None


def _rope(meta: _Metadata, head_dim: int) -> dict[str, Any]:
    theta = float(meta.number("rope.freq_base", 10_000.0))
    kind = meta.text("rope.scaling.type", "none")
    if kind != "none" and not isclose(meta.number("rope.scaling.factor", 1.0), 1.0):
        _refuse_rope(meta, f"RoPE scaling {kind!r}")
    meta.require("rope.scale_linear", 1.0)
    factors = next((t for t in meta.model.tensors if t.name == ROPE_FACTORS), None)
    if factors is None:
        return {"rope_type": "default", "rope_theta": theta}
    values = np.fromfile(factors.part, dtype="<f4", count=factors.num_bytes // 4, offset=factors.start_byte)
    guess = _LLAMA3_ROPE | {"rope_theta": theta, "factor": float(values.max(initial=1.0))}
    if factors.ggml_type != 0 or not _is_close(values, _llama3_divisors(guess, head_dim)):
        _refuse_rope(meta, f"RoPE factors ({ROPE_FACTORS}) other than Llama 3's")
    return guess


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> NDArray[np.float64]:
    """Return what Llama 3's RoPE scaling divides each frequency by, as llama.cpp stores it."""
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((rope["original_max_position_embeddings"] / wave - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / factor + smooth))


def _is_close(values: NDArray[np.float32], expected: NDArray[np.float64]) -> bool:
    return values.shape == expected.shape and bool(np.allclose(values, expected, rtol=1e-4))


def _refuse_rope(meta: _Metadata, what: str) -> None:
    raise ModelError(
        f"{meta.file} carries {what}: expected plain RoPE or Llama 3's, since a GGUF file does not say enough about "
        "others; give the model as a Hugging Face folder of safetensors instead"
    )
