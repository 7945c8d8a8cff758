"""Toy models: tiny random Hugging Face folders and their single-process reference.

torch and transformers are imported when a toy is made, so that `mcf.testing` can be imported without them.
"""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcf.testing.toygguf import cut_file, make_model_gguf, make_toy_gguf, make_toy_gguf_parts
from mcf.testing.toytok import EOS, NUM_TOKENS, SPECIAL_IDS, make_toy_tokenizer

__all__ = [
    "Family",
    "Reference",
    "Rope",
    "cut_file",
    "make_model_gguf",
    "make_toy_gguf",
    "make_toy_gguf_parts",
    "make_toy_model",
    "make_toy_tokenizer",
    "reference_generate",
    "toy_config",
]

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
Rope = Literal["default", "linear", "llama3", "yarn"]

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


class Reference(NamedTuple):
    """What one process says: generated ids [n], their logits [n, vocab] (float32), and top-two margins [n]."""

    ids: list[int]
    logits: NDArray[np.float32]
    margins: NDArray[np.float32]


def toy_config(
    family: Family = "llama",
    *,
    tied: bool = False,
    rope: Rope = "default",
    layers: int = 2,
    q_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocab: int = NUM_TOKENS,
    max_positions: int = 4096,
) -> dict[str, Any]:
    """Return the `config.json` of a toy model; `max_positions` is its window, RoPE scaling included."""
    parameters = {"rope_theta": 10_000.0, **_ROPES[rope]}
    if "original_max_position_embeddings" in parameters and rope == "yarn":
        parameters["factor"] = max_positions / parameters["original_max_position_embeddings"]
    announced = max_positions // int(parameters["factor"]) if rope == "linear" else max_positions
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "hidden_act": "silu",
        "hidden_size": q_heads * head_dim,
        "intermediate_size": 2 * q_heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": q_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": announced,
        "rms_norm_eps": 1e-5,
        "rope_parameters": parameters,
        "tie_word_embeddings": tied,
        "vocab_size": vocab,
        "bos_token_id": SPECIAL_IDS["<bos>"],
        "eos_token_id": SPECIAL_IDS[EOS],
        "dtype": "float32",
    }
    if family == "mistral":
        config["sliding_window"] = None
    return config


def make_toy_model(
    folder: Path,
    family: Family = "llama",
    *,
    seed: int = 0,
    shard_bytes: int | None = None,
    tokenizer: bool = True,
    **sizes: Any,
) -> Path:
    """Write a tiny random model (config, safetensors, ToyTok) into the folder and return it.

    `sizes` are the arguments of `toy_config`. Weights are scaled so that attention matters and logits spread by about
    2: the greedy top-two margin is at least 1e-3 nearly always. `shard_bytes` splits the weights into shards.
    """
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    config = toy_config(family, **sizes)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    library: Any = transformers  # its auto classes are not annotated
    model = library.AutoModelForCausalLM.from_config(library.AutoConfig.from_pretrained(folder), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_random_weight(name, tuple(weight.shape), generator))
    model.save_pretrained(folder, max_shard_size=shard_bytes or 10**12)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if tokenizer:
        make_toy_tokenizer(folder)
    return folder


def reference_generate(folder: Path, ids: list[int], max_new_tokens: int, dtype: str = "float32") -> Reference:
    """Generate greedily with transformers' own attention (sdpa) in this process, never stopping early."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
    )
    rows, out, cache, step = [], [], None, list(ids)
    with torch.inference_mode():
        for _ in range(max_new_tokens):
            output = model(torch.tensor([step]), cache=cache, use_cache=True, logits_to_keep=1)
            cache, row = output.cache, output.logits[0, -1].float()
            step = [int(row.argmax())]
            rows.append(row.numpy())
            out += step
    logits = np.array(rows, dtype=np.float32).reshape(len(rows), -1)
    top = np.sort(logits, axis=1)[:, -2:]
    return Reference(ids=out, logits=logits, margins=top[:, 1] - top[:, 0])


def _random_weight(name: str, shape: tuple[int, ...], generator: Any) -> Any:
    """Return float32 values: norms near 1, small biases, matrices of unit gain; Q, K and the head have more."""
    import torch

    noise = torch.randn(shape, generator=generator)
    if "norm" in name:
        return 1.0 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    gains = {"q_proj": 1.4, "k_proj": 1.4, "lm_head": 2.0, "embed_tokens": 2.0}
    return gains.get(name.split(".")[-2], 1.0) * shape[1] ** -0.5 * noise
