"""The one file that adapts transformers: load a model and run its layers with our attention.

transformers keeps the layer loop. Each attention layer calls the function registered here under the name `mcf`, which
hands Q, K and V (after RoPE) to the *current runtime* and returns what that gives. The runtime is current for the
thread that runs the forward, so several nodes may run as threads of one process over one shared model.

No mask is built (an attention name without a mask function skips it) and no cache object is passed: the runtime owns
all keys and values. Positions are explicit, so a call may hold several separated token spans.

Shapes: T tokens of this call, Hq query heads, Hkv KV heads, d head size, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mcf.errors import ModelError, UnknownNameError

ATTENTION = "mcf"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What models hand to their attention beside Q, K, V and the scale: each changes the result, and none is supported.
_FOREIGN = ("sliding_window", "softcap", "s_aux", "position_bias", "block_mask")


class Runtime(Protocol):
    """What executes one node's part of the attention."""

    def attention(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return the attention output [T, Hq, d] of q [T, Hq, d] with the new k and v [T, Hkv, d] of this layer."""
        ...


@dataclass(kw_only=True)
class _Call:
    """One running forward: its runtime and the attention layers visited so far."""

    runtime: Runtime
    layers: list[int] = field(default_factory=list)


_current: ContextVar[_Call | None] = ContextVar("mcf_forward", default=None)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model whose attention is ours; thread-safe, since forwards change nothing in it."""

    model: PreTrainedModel
    name: str
    num_layers: int
    vocab_size: int
    dtype: torch.dtype

    @property
    def scale(self) -> float | None:
        """The factor on attention scores that the model's layers use; None: one over the root of the head size."""
        found = (m.scaling for m in self.model.modules() if hasattr(m, "layer_idx") and hasattr(m, "scaling"))
        scale: Any = next(found, None)
        return None if scale is None else float(scale)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, runtime: Runtime, *, logits_row: int | None = None
    ) -> torch.Tensor | None:
        """Run these tokens [T] (int64) at these absolute positions [T] (int64) through all layers.

        Returns the logits [V] (float32) of row `logits_row` of this call, or None where it is None: then the output
        head is not computed. T is at least 1: a node without tokens walks its layers without the model. Raises
        `ModelError` where the model does not send each attention layer through our function exactly once.
        """
        inputs = {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}
        with torch.inference_mode(), _running(_Call(runtime=runtime)) as call:
            if logits_row is None:
                self.model.base_model(**inputs)
                logits = None
            else:  # the model's own head, with whatever scaling it applies
                output = self.model(**inputs, logits_to_keep=torch.tensor([logits_row]))
                logits = output.logits[0, 0].float()
        self._check_visits(call.layers)
        return logits

    def _check_visits(self, layers: list[int]) -> None:
        if layers != list(range(self.num_layers)):
            raise ModelError(
                f"{self.name} ran attention layers {layers} in one pass: expected 0 to {self.num_layers - 1}, each "
                "once, through transformers' attention interface; this architecture is not supported"
            )


def load_model(folder: Path, dtype: str, *, num_threads: int) -> LoadedModel:
    """Load the safetensors model in the folder with our attention; `dtype` is float32 or bfloat16.

    Sets the process's number of compute threads. Reads only this folder, never the network, and runs no code from it.
    Raises `ModelError` for weights that are broken, missing or of another shape than the config says.
    """
    if dtype not in DTYPES:
        raise UnknownNameError("dtype", dtype, DTYPES)
    torch.set_num_threads(num_threads)
    AttentionInterface.register(ATTENTION, _attention)
    model, info = _from_pretrained(folder, DTYPES[dtype])
    _check_loading(folder, info)
    model.eval().requires_grad_(False)
    return LoadedModel(
        model=model,
        name=f"{folder.name} ({model.config.model_type})",
        num_layers=model.config.num_hidden_layers,
        vocab_size=model.config.vocab_size,
        dtype=DTYPES[dtype],
    )


def _from_pretrained(folder: Path, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Return the model and transformers' report of what it found in the weights."""
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": ATTENTION,
        "local_files_only": True,
        "use_safetensors": True,
        "trust_remote_code": False,
        "output_loading_info": True,
    }
    try:
        with _quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(str(folder), **options)
    except Exception as error:  # transformers and safetensors raise many kinds, some with long advice
        why = " ".join(str(error).split())[:300]
        raise ModelError(f"the model in {folder} cannot be loaded ({why}): expected a causal language model") from error
    model, info = loaded
    return model, info


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Hand one layer's attention to the current runtime.

    transformers' shapes: query [1, Hq, T, d], key and value [1, Hkv, T, d]; the output is [1, T, Hq, d].
    """
    call = _current.get()
    if call is None:
        raise RuntimeError("attention 'mcf' runs only inside LoadedModel.forward")
    _check_standard(module, attention_mask, kwargs)
    layer_idx = int(module.layer_idx)  # type: ignore[arg-type]  # every transformers attention module has one
    call.layers.append(layer_idx)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return call.runtime.attention(layer_idx, q, k, v, scale)[None], None


def _check_standard(module: torch.nn.Module, mask: torch.Tensor | None, kwargs: dict[str, Any]) -> None:
    foreign = [name for name in _FOREIGN if kwargs.get(name) is not None]
    if mask is not None:
        foreign.append("attention_mask")
    if foreign:
        raise ModelError(
            f"{type(module).__name__} asks for {', '.join(foreign)}: expected plain causal attention; "
            "this architecture is not supported"
        )


def _check_loading(folder: Path, info: dict[str, Any]) -> None:
    for what in ("missing_keys", "mismatched_keys"):
        names = sorted(str(name) for name in info.get(what) or ())
        if names:
            raise ModelError(
                f"the weights in {folder} do not fit its config ({len(names)} {what.split('_')[0]}: {names[0]} first): "
                "expected exactly the model's tensors; get the model again"
            )


@contextmanager
def _running(call: _Call) -> Iterator[_Call]:
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and load reports off the terminal: we check and report ourselves."""
    log: Any = transformers_logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
