"""ToyTok: a byte-level BPE tokenizer folder, small enough to know every id.

Ids 0 to 255 are the bytes 0x00 to 0xFF, 256 and up the merges, then the special tokens in the order of `SPECIALS`.
"""

import json
from pathlib import Path
from typing import Any

MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("t", "h"))
BOS, EOS, USER, ASSISTANT, END = "<bos>", "<eos>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (BOS, EOS, USER, ASSISTANT, END)
NUM_TOKENS = 256 + len(MERGES) + len(SPECIALS)
SPECIAL_IDS = {name: 256 + len(MERGES) + i for i, name in enumerate(SPECIALS)}


def byte_letters() -> list[str]:
    """Return the printable character that byte-level BPE writes for each byte (the GPT-2 table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def chat_template(*, first: str) -> str:
    """Return a Jinja chat template that begins with `first` and wraps each message in its role's markers."""
    turn = "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    prompt = "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    return f"{first}{{% for message in messages %}}{turn}{{% endfor %}}{prompt}"


def make_toy_tokenizer(
    folder: Path,
    *,
    template_writes_bos: bool = False,
    add_bos: bool = False,
    with_template: bool = True,
    template: str | None = None,
    bos_token: str = BOS,
) -> None:
    """Write tokenizer.json and tokenizer_config.json into the folder.

    `template_writes_bos` makes the chat template begin with the BOS token; `add_bos` makes the tokenizer put one
    before every text. `template` replaces the chat template, and `bos_token` names another token as BOS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos_token,
        "eos_token": EOS,
        "model_max_length": 1_000_000,
        "clean_up_tokenization_spaces": False,
    }
    if with_template:
        config["chat_template"] = template or chat_template(first="{{ bos_token }}" if template_writes_bos else "")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(add_bos, bos_token)), encoding="utf-8")


def _tokenizer(add_bos: bool, bos_token: str) -> dict[str, Any]:
    """Return the content of tokenizer.json (format: the tokenizers library, version 1.0)."""
    tokens = [*byte_letters(), *("".join(pair) for pair in MERGES), *SPECIALS]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(name, number) for name, number in SPECIAL_IDS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _bos_first(bos_token) if add_bos else None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(pair) for pair in MERGES],
        },
    }


def _added(name: str, number: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": name, **flags}


def _bos_first(bos_token: str) -> dict[str, Any]:
    bos = {"SpecialToken": {"id": bos_token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos_token: {"id": bos_token, "ids": [SPECIAL_IDS[bos_token]], "tokens": [bos_token]}},
    }
