"""The two models of the scaling benchmark, as folders that both MCF and transformers load."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers

from mcf.cache import cache_root
from mcf.engine.source import resolve
from mcf.testing.toytok import make_toy_tokenizer

NAMES = {"smollm": "SmolLM2-135M", "qwen": "Qwen2.5-0.5B's shape, random weights"}
_QWEN = {
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 16384,
    "bos_token_id": None,
    "eos_token_id": None,
}


def folder_of(name: str) -> Path:
    """Return the folder of a model of `NAMES`; the random weights are made once, into the cache folder."""
    return resolve("demo").folder if name == "smollm" else _random_qwen(cache_root() / "bench" / "qwen2.5-0.5b-random")


def _random_qwen(folder: Path) -> Path:
    if folder.exists():
        return folder
    half_made = folder.with_name(f"{folder.name}.{os.getpid()}")
    library: Any = transformers  # its model classes are not annotated
    torch.manual_seed(0)
    model = library.Qwen2ForCausalLM(library.Qwen2Config(**_QWEN)).to(torch.bfloat16)
    shutil.rmtree(half_made, ignore_errors=True)
    model.save_pretrained(half_made)
    make_toy_tokenizer(half_made)
    half_made.rename(folder)
    return folder
