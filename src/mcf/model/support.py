"""Which models MCF would compute wrongly, by name: said before any weight is read."""

from collections.abc import Iterator, Mapping

from mcf.errors import ModelError
from mcf.model.fields import Config, kind, line, short, strings
from mcf.model.rope import check_rope, rope_params

# Model types whose windows slide where config.json does not say (checked against transformers by a test).
_SLIDES_UNLESS_TOLD = {"cohere2", "exaone4", "gemma2", "gemma3_text", "ministral", "mistral"}

_SINKS = {"gpt_oss"}
_LATENT = {"deepseek_v2", "deepseek_v3", "deepseek_v4", "minicpm3"}
_ALIBI = {"bloom", "mpt"}
_RECURRENT = {"falcon_mamba", "mamba", "mamba2", "minimax", "qwen3_next", "recurrent_gemma", "rwkv"}
# Keys that only configs with such layers have.
_RECURRENT_KEYS = {"hybrid_override_pattern", "layers_block_type", "linear_num_key_heads", "mamba_d_conv", "ssm_cfg"}
_RECURRENT_LAYERS = {"conv", "linear_attention", "mamba", "mamba2", "recurrent"}
_PLAIN_LAYERS = {"attention", "full_attention"}


def check_supported(config: Config) -> None:
    """Raise `ModelError` naming the first thing in config that MCF does not do yet; return where there is none."""
    for reason in _refusals(config):
        model_type = line(kind(config)) or "unknown type"
        raise ModelError(
            f"got a model ({model_type}) with {line(reason)}: expected a decoder-only model with full causal attention"
        )
    for rope in rope_params(config):
        check_rope(rope)


def _refusals(config: Config) -> Iterator[str]:
    yield from _kind_refusals(config)
    yield from _attention_refusals(config)
    if config.get("quantization_config"):
        quantization = config["quantization_config"]
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
        yield f"quantized weights ({method or 'unknown'})"


def _kind_refusals(config: Config) -> Iterator[str]:
    if config.get("is_encoder_decoder"):
        yield "an encoder and a decoder"
    if config.get("text_config") or config.get("vision_config") or config.get("audio_config"):
        yield "more than text (a multimodal model)"
    names = strings(config, "architectures")
    if names and not any(name.endswith("ForCausalLM") for name in names):
        yield f"architecture {', '.join(names)} (not ...ForCausalLM)"


def _attention_refusals(config: Config) -> Iterator[str]:
    model_type = kind(config)
    if config.get("kv_lora_rank") or model_type in _LATENT:
        yield "multi-head latent attention (MLA)"
    if model_type in _RECURRENT or _RECURRENT_KEYS & set(config) or _layer_types(config) & _RECURRENT_LAYERS:
        yield "linear attention or state-space layers"
    if config.get("attn_logit_softcapping") or (model_type == "gemma2" and "attn_logit_softcapping" not in config):
        yield "attention logit soft-capping"
    if model_type in _SINKS:
        yield "attention sinks"
    if _slides(config):
        window = config.get("sliding_window")
        yield f"sliding-window attention (window {short(window) if window else 'by default'})"
    if config.get("alibi") or model_type in _ALIBI:
        yield "ALiBi position biases"
    if config.get("use_bidirectional_attention"):
        yield "bidirectional attention"
    if config.get("num_kv_shared_layers") or config.get("block_configs"):
        yield "layers that differ in their attention"
    if config.get("attention_chunk_size") or model_type == "llama4_text":
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
    return bool(config.get("sliding_window")) or (kind(config) in _SLIDES_UNLESS_TOLD and not told)


def _layer_types(config: Config) -> set[str]:
    return set(strings(config, "layer_types"))
