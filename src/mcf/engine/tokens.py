"""Text to token ids and back, through the model's own fast tokenizer.

Chat templates are programs from the model folder; transformers renders them in Jinja's immutable sandbox, without
access to files, modules or attributes of Python objects.
"""

import gc
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mcf.engine.source import ModelSource
from mcf.errors import ModelError, PromptError

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # one raw byte, as sentencepiece vocabularies write it
_BROKEN = "\ufffd"


class Tokenizer:
    """A model's tokenizer: raw and chat prompts to ids, ids to text, and the ids that end a text."""

    def __init__(self, tokenizer: Any, *, eos_ids: Iterable[int] = (), vocab_size: int | None = None) -> None:
        """Wrap a transformers fast tokenizer; its own end token joins `eos_ids`.

        `vocab_size` is the model's: ids at or above it are refused when text is encoded.
        """
        own = tokenizer.eos_token_id
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self.eos_ids = frozenset(eos_ids) | ({int(own)} if own is not None else frozenset())
        self._special_ids = frozenset(tokenizer.all_special_ids)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can be used; without a template, the caller falls back to `encode_raw`."""
        return bool(self._template())

    def encode_raw(self, text: str) -> list[int]:
        """Return the ids of the text, with what the tokenizer adds by itself (often a BOS token, often nothing).

        Special tokens written out in the text (such as `<|im_start|>`) become those tokens.
        """
        return self._check(self._tokenizer(text, verbose=False)["input_ids"])

    def encode_chat(self, user_text: str) -> list[int]:
        """Return the ids of a chat with one user message, ready for the answer.

        They are exactly those of `apply_chat_template(tokenize=True, add_generation_prompt=True)`: the template alone
        decides about BOS. Control tokens written out in the user's text stay ordinary text. Raises `PromptError`
        where the template refuses the message, `ModelError` where there is no template or it is broken.
        """
        if not self.has_chat_template:
            raise ModelError(
                "the model has no chat template: expected one in its tokenizer files; give the prompt as raw text"
            )
        try:
            ids = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": user_text}],
                chat_template=self._template(),
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                sanitize_control_tokens=self._has_control_tokens(user_text),
            )
        except Exception as error:  # jinja2 raises what the template does wrong, in many kinds
            raise _template_error(error) from error
        return self._check(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of all ids, without special tokens; broken UTF-8 becomes U+FFFD."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decode_stream(self) -> "DecodeStream":
        """Return a new incremental decoder."""
        return DecodeStream(self)

    def is_unsettled(self, token_id: int) -> bool:
        """Say whether a token is one raw byte whose text depends on the byte tokens after it."""
        return _BYTE_TOKEN.fullmatch(self._tokenizer.convert_ids_to_tokens(token_id) or "") is not None

    def is_special(self, token_id: int) -> bool:
        """Say whether a token leaves no text."""
        return token_id in self._special_ids

    def _template(self) -> str | None:
        template = self._tokenizer.chat_template
        return template.get("default") if isinstance(template, dict) else template

    def _has_control_tokens(self, text: str) -> bool:
        return any(token.content in text for token in self._tokenizer.added_tokens_decoder.values())

    def _check(self, ids: Sequence[int]) -> list[int]:
        if self._vocab_size is not None and ids and max(ids) >= self._vocab_size:
            raise ModelError(
                f"the tokenizer gives token id {max(ids)}, but the model has {self._vocab_size}: expected files of one "
                "model; get tokenizer and weights together"
            )
        return [int(i) for i in ids]


class DecodeStream:
    """Turns ids into text as they come: the pieces joined equal the decode of all ids.

    A piece is held back while it could still change: an unfinished UTF-8 character, or a run of raw byte tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the last piece given out (context for the decoder) and what came after it
        self._given = 0  # ids whose text has been given out
        self._unsettled = False

    def push(self, token_id: int) -> str:
        """Take the next id and return the text that is certain now, which may be empty."""
        self._ids.append(token_id)
        if not self._tokenizer.is_special(token_id):
            self._unsettled = self._tokenizer.is_unsettled(token_id)
        text = "" if self._unsettled else self._new_text()
        if not text or text.endswith(_BROKEN):
            return ""
        self._ids, self._given = self._ids[self._given :], len(self._ids) - self._given
        return text

    def finish(self) -> str:
        """Return what is still held back; a character that never was completed comes out as U+FFFD."""
        text = self._new_text()
        self._ids, self._given, self._unsettled = [], 0, False
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._given])
        return self._tokenizer.decode(self._ids)[len(before) :]


def load_tokenizer(source: ModelSource) -> Tokenizer:
    """Load the tokenizer of a resolved model, from its folder alone.

    Raises `ModelError` where the files cannot be read or need code from the model folder.
    """
    tokenizer = _from_pretrained(source.folder)
    return Tokenizer(tokenizer, eos_ids=source.eos_ids, vocab_size=source.config.get("vocab_size"))


def _auto_tokenizer() -> Any:
    """Import it; without looking for garbage among what imports make, all of which stays."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        from transformers import AutoTokenizer
    finally:
        if was_on:
            gc.enable()
    return AutoTokenizer


def _from_pretrained(folder: Path) -> Any:
    auto_tokenizer = _auto_tokenizer()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = auto_tokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise many kinds, some with long advice
        why = " ".join(str(error).split())[:300]
        raise ModelError(
            f"the tokenizer in {folder} cannot be read ({why}): expected tokenizer files that transformers knows; "
            "get the model again"
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"the tokenizer in {folder} has no fast form ({type(tokenizer).__name__}): expected a tokenizer.json; "
            "save it once with transformers' save_pretrained"
        )
    return tokenizer


def _template_error(error: Exception) -> ModelError | PromptError:
    why = " ".join(str(error).split())[:300]
    if type(error).__module__.startswith("jinja2") and type(error).__name__ == "TemplateError":
        return PromptError(f"the model's chat template refuses the prompt ({why}): expected a message it accepts")
    return ModelError(
        f"the model's chat template is broken ({why}): expected one that renders; give the prompt as raw text"
    )
