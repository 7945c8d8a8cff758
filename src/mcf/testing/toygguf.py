"""Toy GGUF files, whole and broken, for the checks of what happens with bad model files."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from mcf.testing.toytok import byte_letters

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_toy_gguf(path: Path, *, num_tensors: int = 4, rows: int = 64) -> Path:
    """Write a valid GGUF file of a few small float32 tensors and return its path; it is no whole model."""
    writer = _writer(path)
    for i in range(num_tensors):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.full((rows, 32), float(i), dtype=np.float32))
    _write(writer)
    return path


def make_toy_gguf_parts(folder: Path, *, stem: str = "toy") -> list[Path]:
    """Write the four-tensor toy as three parts, named as llama.cpp names them, and return their paths in order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    tensors = [[0, 1], [2], [3]]
    for number, (path, indices) in enumerate(zip(paths, tensors, strict=True)):
        writer = _writer(path, named=number == 0)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 3)
        writer.add_int32("split.tensors.count", 4)
        for i in indices:
            writer.add_tensor(f"blk.{i}.attn_norm.weight", np.full((64, 32), float(i), dtype=np.float32))
        _write(writer)
    return paths


def cut_file(path: Path, size: float | int) -> Path:
    """Cut a file to `size` bytes, or to that fraction of itself where it is a float; return its path."""
    data = path.read_bytes()
    keep = int(len(data) * size) if isinstance(size, float) else size
    path.write_bytes(data[:keep])
    return path


def make_model_gguf(
    path: Path,
    folder: Path,
    *,
    quant: str = "F32",
    extra: dict[str, Any] | None = None,
    extra_tensors: dict[str, Any] | None = None,
) -> Path:
    """Write a toy model folder (llama, qwen2 or qwen3, with ToyTok) as one GGUF file and return its path.

    `quant` is the type of the matrices (F32, F16, Q8_0, ...; norms stay float32). `extra` are more metadata values:
    strings, floats or ints, by full key. `extra_tensors` are more tensors, float32 arrays by GGUF name.
    """
    from gguf import GGMLQuantizationType, quants
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = _writer(path, arch=config["model_type"])
    _add_config(writer, config)
    _add_tokenizer(writer, folder, config)
    for key, value in (extra or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(key, value)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    for name, values in load_file(folder / "model.safetensors").items():
        kind = GGMLQuantizationType[quant if values.ndim == 2 else "F32"]
        rows = _interleaved(name, values, config) if config["model_type"] == "llama" else values
        writer.add_tensor(_gguf_name(name), quants.quantize(rows, kind), raw_dtype=kind)
    _write(writer)
    return path


def _writer(path: Path, *, arch: str = "llama", named: bool = True) -> Any:
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), arch)
    if named:
        writer.add_name("toy")
    return writer


def _write(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: Any, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    assert tokens[:256] == byte_letters()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in added else 1 for i in range(len(tokens))])  # 3 is control, 1 is normal
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    template = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    if template:
        writer.add_chat_template(template)


def _gguf_name(name: str) -> str:
    base, kind = name.rsplit(".", 1)
    if base in _GGUF_NAMES:
        return f"{_GGUF_NAMES[base]}.{kind}"
    _, _, layer, inner = base.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[inner]}.{kind}"


def _interleaved(name: str, values: Any, config: dict[str, Any]) -> Any:
    """Interleave the rotary halves of Q and K rows, as llama.cpp's converter does for the llama family."""
    if not (".q_proj." in name or ".k_proj." in name):
        return values
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
