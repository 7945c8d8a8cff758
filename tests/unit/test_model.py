"""Model shapes: what a config.json gives, which windows are announced, which models are refused by name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.errors import ModelError, UnknownNameError, UserError
from mcf.model import ModelShape, check_supported, max_positions

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
    "rope_scaling": None,
}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
ROPE = st.fixed_dictionaries(
    {},
    optional={
        "rope_type": st.sampled_from(["linear", "yarn", "llama3", "default"]) | JSON,
        "factor": JSON,
        "original_max_position_embeddings": JSON,
    },
)
KEYS = [*LLAMA, "head_dim", "rope_parameters", "layer_types", "sliding_window", "quantization_config", "text_config"]
KEYS += ["original_max_position_embeddings", "_name_or_path"]


def config(**changes: Any) -> dict[str, Any]:
    return LLAMA | changes


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key not in keys}


def shape_or_message(raw: dict[str, Any]) -> tuple[ModelShape | None, str]:
    try:
        return ModelShape.from_config(raw), ""
    except ModelError as error:
        return None, str(error)


def test_a_llama_config_gives_its_shape() -> None:
    assert ModelShape.from_config(LLAMA) == ModelShape(
        name="llama",
        num_layers=30,
        num_q_heads=9,
        num_kv_heads=3,
        head_dim=64,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        max_positions=8192,
        kv_bytes=4,
        act_bytes=4,
    )


def test_kv_bytes_of_a_token_follow_equation_1() -> None:
    shape = ModelShape.from_config(LLAMA, dtype="bfloat16", name="smol")
    assert shape.name == "smol"
    assert shape.kv_token_layer_bytes == 2 * 3 * 64 * 2
    assert shape.kv_token_bytes == 30 * 768
    assert ModelShape.from_config(LLAMA).kv_token_bytes == 2 * shape.kv_token_bytes
    assert shape.num_group_heads == 3


def test_int4_kv_is_half_a_byte_per_element_and_no_other_fraction_is_a_size() -> None:
    shape = ModelShape.from_config(LLAMA)
    assert replace(shape, kv_bytes=0.5).kv_token_bytes * 8 == shape.kv_token_bytes
    for kv_bytes in (0.25, 1.5, 0):
        with pytest.raises(ModelError, match="kv_bytes"):
            replace(shape, kv_bytes=kv_bytes)


def test_weights_are_counted_by_matrix() -> None:
    shape = ModelShape.from_config(LLAMA)
    assert shape.num_attention_weights == 576 * 576 * 2 + 576 * 192 * 2
    assert shape.num_mlp_weights == 3 * 576 * 1536
    assert shape.num_layer_weights == shape.num_attention_weights + shape.num_mlp_weights
    # SmolLM2-135M: 134,515,008 parameters with tied embeddings, of which 61 norm vectors are not counted here
    assert shape.num_weights == 134_515_008 - 61 * 576


def test_left_out_keys_take_the_values_of_transformers() -> None:
    assert ModelShape.from_config(without("num_key_value_heads")).num_kv_heads == 9
    assert ModelShape.from_config(config(num_key_value_heads=None)).num_kv_heads == 9
    assert ModelShape.from_config(config(head_dim=None)).head_dim == 64
    assert ModelShape.from_config(config(head_dim=128)).head_dim == 128
    qwen3 = config(model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    assert ModelShape.from_config(qwen3).head_dim == 128
    assert ModelShape.from_config(qwen3 | {"head_dim": 80}).head_dim == 80


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma", "glm", "glm4", "qwen3_moe", "mixtral"])
def test_head_dims_and_windows_equal_those_of_transformers(kind: str) -> None:
    auto = pytest.importorskip("transformers").AutoConfig
    raw = {key: value for key, value in LLAMA.items() if key not in ("architectures", "model_type")}
    theirs = auto.for_model(kind, **raw, sliding_window=None)
    ours = ModelShape.from_config(raw | {"model_type": kind, "sliding_window": None})
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    # the dict of the parsed config means the same as the raw one
    assert ModelShape.from_config(theirs.to_dict()) == ours


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["cohere2", "exaone4", "gemma2", "gemma3_text", "gpt_oss", "ministral", "mistral"])
def test_models_that_slide_by_default_are_refused_with_the_bare_and_with_the_full_config(kind: str) -> None:
    auto = pytest.importorskip("transformers").AutoConfig
    for raw in ({"model_type": kind}, auto.for_model(kind).to_dict()):
        with pytest.raises(ModelError, match=r"sliding-window|sinks|soft-capping"):
            check_supported(raw)


@pytest.mark.parametrize(
    ("rope", "window"),
    [
        (None, 8192),
        ({}, 8192),
        ({"rope_type": "default"}, 8192),
        ({"rope_type": "default", "rope_theta": 1e4}, 8192),
        ({"rope_type": "linear", "factor": 4.0}, 32768),
        ({"type": "linear", "factor": 2}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"type": "yarn", "factor": 2.5}, 20480),
        ({"type": "yarn", "factor": None, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 2048}, 8192),
        ({"full_attention": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192}}, 16384),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_window_follows_the_rope_scaling(key: str, rope: dict[str, Any] | None, window: int) -> None:
    raw = without("rope_scaling") | {key: rope}
    assert ModelShape.from_config(raw).max_positions == max_positions(raw) == window


def test_the_older_rope_scaling_wins_and_the_outer_original_window_too() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    both = config(rope_scaling=yarn, rope_parameters={"rope_type": "default"})
    assert max_positions(both) == 8192
    assert max_positions(both | {"original_max_position_embeddings": 4096}) == 16384


@pytest.mark.parametrize(
    ("rope", "why"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic'.*depend on the length"),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "'longrope'.*depend on the length"),
        ({"rope_type": "su"}, "unknown RoPE type 'su'"),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, "unknown RoPE type 'mrope'"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, "unknown RoPE type"),
        ({"full_attention": {"rope_type": "default"}, "other": {"rope_type": "proportional"}}, "'proportional'"),
        ({"factor": 4.0}, "without a rope_type"),
        ({"rope_type": "linear"}, "None as the factor"),
        ({"rope_type": "yarn", "factor": 0.5}, r"0\.5 as the factor"),
        ({"rope_type": "yarn", "factor": "4"}, "'4' as the factor"),
        ({"rope_type": "llama3", "factor": float("nan")}, "nan as the factor"),
        ("yarn", "as RoPE parameters"),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rope_types_that_would_be_computed_wrongly_are_refused(key: str, rope: object, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        ModelShape.from_config(without("rope_scaling") | {key: rope})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sliding_window": 4096}, r"sliding-window attention \(window 4096\)"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"model_type": "mistral"}, "sliding-window attention .window by default."),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "deepseek_v3"}, "latent attention"),
        ({"model_type": "mamba"}, "state-space"),
        ({"model_type": "qwen3_next"}, "state-space"),
        ({"mamba_d_conv": 4}, "state-space"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear attention"),
        ({"layer_types": ["full_attention", "heavily_compressed_attention"]}, "type heavily_compressed_attention"),
        ({"attn_logit_softcapping": 50.0}, "soft-capping"),
        ({"model_type": "gemma2"}, "soft-capping"),
        ({"model_type": "gpt_oss"}, "sinks"),
        ({"is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"architectures": ["BertForMaskedLM"]}, "architecture BertForMaskedLM"),
        ({"text_config": {"model_type": "llama"}}, "multimodal"),
        ({"alibi": True}, "ALiBi"),
        ({"use_bidirectional_attention": True}, "bidirectional"),
        ({"num_kv_shared_layers": 10}, "differ in their attention"),
        ({"attention_chunk_size": 8192}, "chunked local attention"),
        ({"index_topk": 64}, "sparse attention"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, r"quantized weights \(awq\)"),
        ({"quantization_config": {"bits": 4}}, r"quantized weights \(unknown\)"),
    ],
)
def test_models_that_mcf_would_compute_wrongly_are_refused_by_name(changes: dict[str, Any], why: str) -> None:
    for check in (check_supported, ModelShape.from_config):
        with pytest.raises(ModelError, match=why) as caught:
            check(config(**changes))
        assert "\n" not in str(caught.value)
        assert "expected a decoder-only model with full causal attention" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen2", "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 21},
        {"model_type": "qwen2", "sliding_window": None, "layer_types": ["full_attention"] * 30},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2_moe", "sliding_window": 0},
        {"model_type": "mixtral", "num_local_experts": 8},
        {"architectures": None},
        {"quantization_config": None, "text_config": None, "is_encoder_decoder": False},
        {"attn_logit_softcapping": None, "alibi": False, "layer_types": None},
    ],
)
def test_configs_that_only_look_unusual_pass(changes: dict[str, Any]) -> None:
    check_supported(config(**changes))
    assert ModelShape.from_config(config(**changes)).num_layers == 30


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings"]
)
@pytest.mark.parametrize("bad", [None, 0, -1, 1.5, "30", True, [30]])
def test_sizes_that_are_missing_or_impossible_are_named(key: str, bad: object) -> None:
    with pytest.raises(ModelError, match=key) as caught:
        ModelShape.from_config(config(**{key: bad}))
    assert isinstance(caught.value, UserError)
    assert "expected a whole number of at least 1" in str(caught.value)


def test_heads_must_divide() -> None:
    with pytest.raises(ModelError, match="got 9 query heads for 2 KV heads"):
        ModelShape.from_config(config(num_key_value_heads=2))
    with pytest.raises(ModelError, match="got hidden_size 577 for 9 heads"):
        ModelShape.from_config(config(hidden_size=577))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown dtype 'float16'.*known are bfloat16, float32"):
        ModelShape.from_config(LLAMA, dtype="float16")


@given(st.dictionaries(st.sampled_from(KEYS), JSON | ROPE, max_size=3))
def test_whatever_a_config_holds_gives_a_shape_or_one_clear_line(changes: dict[str, Any]) -> None:
    shape, message = shape_or_message(config(**changes))
    if shape is None:
        assert message.startswith("got ")
        assert len(message.splitlines()) == 1
        assert len(message) < 300
    else:
        assert shape.kv_token_bytes > 0
        assert shape.max_positions >= 1
