"""mcf.dist.hf: transformers runs the layers, a runtime of ours the attention."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from mcf.dist import hf
from mcf.errors import ModelError, UnknownNameError
from mcf.testing.toys import make_toy_model, reference_generate

ATOL = 2e-5  # float32 sums grouped differently, logits of size 2 to 10; 1e-5 holds but for a few entries
PROMPT = [104, 258, 32, 119, 111, 7, 201, 14, 88, 91, 3, 77, 250, 61, 19, 42, 8, 133, 90, 5, 66, 12, 178]


class DenseRuntime:
    """One node's runtime: keeps every key, value and position, and attends densely in float32."""

    def __init__(self) -> None:
        self.kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.current = torch.zeros(0, dtype=torch.int64)
        self.scales: set[float] = set()

    def start(self, positions: torch.Tensor) -> None:
        self.current = positions
        self.positions = torch.cat([self.positions, positions])

    def attention(self, layer_idx, q, k, v, scale):
        old_k, old_v = self.kv.get(layer_idx, (k[:0], v[:0]))
        keys, values = torch.cat([old_k, k]), torch.cat([old_v, v])
        self.kv[layer_idx] = (keys, values)
        self.scales.add(scale)
        visible = self.current[:, None] >= self.positions[None, :]
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1).float(),
            keys.transpose(0, 1).float(),
            values.transpose(0, 1).float(),
            attn_mask=visible,
            scale=scale,
            enable_gqa=True,
        )
        return out.transpose(0, 1).to(q.dtype)


def run_spans(model: hf.LoadedModel, ids: list[int], chunks: list[list[int]]) -> tuple[DenseRuntime, np.ndarray]:
    """Run chunks of positions one after the other; return the runtime and the last token's logits."""
    runtime = DenseRuntime()
    logits = None
    for chunk in chunks:
        positions = torch.tensor(chunk)
        runtime.start(positions)
        row = chunk.index(len(ids) - 1) if len(ids) - 1 in chunk else None
        out = model.forward(torch.tensor([ids[p] for p in chunk]), positions, runtime, logits_row=row)
        assert (out is None) == (row is None)
        logits = out if out is not None else logits
    assert logits is not None
    return runtime, logits.numpy()


def generate(
    model: hf.LoadedModel, ids: list[int], chunks: list[list[int]], steps: int
) -> tuple[list[int], np.ndarray]:
    runtime, logits = run_spans(model, ids, chunks)
    out, rows = [int(logits.argmax())], [logits]
    while len(out) < steps:
        position = torch.tensor([len(ids) + len(out) - 1])
        runtime.start(position)
        row = model.forward(torch.tensor([out[-1]]), position, runtime, logits_row=0)
        assert row is not None
        rows.append(row.numpy())
        out.append(int(rows[-1].argmax()))
    return out, np.array(rows)


def chunks_of(size: int, num: int) -> list[list[int]]:
    return [list(range(i, min(i + size, num))) for i in range(0, num, size)]


VARIANTS = [
    ("llama", {}),
    ("llama", {"tied": True}),
    ("llama", {"rope": "llama3"}),
    ("llama", {"rope": "yarn"}),
    ("llama", {"rope": "linear"}),
    ("mistral", {"head_dim": 8}),
    ("qwen2", {"tied": True}),
    ("qwen2", {"rope": "yarn", "q_heads": 6, "kv_heads": 3}),
    ("qwen3", {"kv_heads": 1}),
]


@pytest.mark.parametrize(("family", "sizes"), VARIANTS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_forward_equals_transformers(tmp_path: Path, family: str, sizes: dict, chunk: int) -> None:
    folder = make_toy_model(tmp_path, family, **sizes)
    expected = reference_generate(folder, PROMPT, 6)
    assert expected.margins.min() >= 1e-3
    model = hf.load_model(folder, "float32", num_threads=1)
    ids, logits = generate(model, PROMPT, chunks_of(chunk, len(PROMPT)), 6)
    assert ids == expected.ids
    np.testing.assert_allclose(logits, expected.logits, atol=ATOL)


def test_separated_spans_in_any_order_and_any_row(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path, "qwen3")
    model = hf.load_model(folder, "float32", num_threads=1)
    expected = reference_generate(folder, PROMPT, 1)
    # two spans in one call; then the rest, the last token not in the last row
    runtime, logits = run_spans(
        model, PROMPT, [[*range(5)], [*range(5, 9)], [*range(12, 15), *range(9, 12)], [*range(15, 21), 22, 21]]
    )
    np.testing.assert_allclose(logits, expected.logits[0], atol=ATOL)
    assert runtime.scales == {16**-0.5}


def test_bfloat16_follows_transformers(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path, "llama")
    model = hf.load_model(folder, "bfloat16", num_threads=1)
    expected = reference_generate(folder, PROMPT, 1, dtype="bfloat16")
    _, logits = run_spans(model, PROMPT, chunks_of(8, len(PROMPT)))
    assert logits.dtype == np.float32
    # bfloat16 keeps 8 bits: 0.4% of logits that spread to about 10
    np.testing.assert_allclose(logits, expected.logits[0], atol=0.15)


def test_threads_share_one_model(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path, "llama", layers=3)
    model = hf.load_model(folder, "float32", num_threads=1)
    prompts = [PROMPT[i : i + 20] for i in range(4)]
    got: dict[int, np.ndarray] = {}
    gate = threading.Barrier(4)

    class Meeting(DenseRuntime):
        def attention(self, *args):
            gate.wait(timeout=60)  # all four threads stand in the same layer
            return super().attention(*args)

    def work(i: int) -> None:
        runtime = Meeting()
        runtime.start(torch.arange(20))
        out = model.forward(torch.tensor(prompts[i]), torch.arange(20), runtime, logits_row=19)
        assert out is not None
        got[i] = out.numpy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    for i, ids in enumerate(prompts):
        np.testing.assert_allclose(got[i], run_spans(model, ids, [[*range(20)]])[1], atol=1e-6)


def test_no_mask_no_repeated_heads_and_layers_in_order(tmp_path: Path) -> None:
    seen = []

    class Watching(DenseRuntime):
        def attention(self, layer_idx, q, k, v, scale):
            seen.append((layer_idx, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
            return super().attention(layer_idx, q, k, v, scale)

    model = hf.load_model(make_toy_model(tmp_path, "llama", layers=3), "float32", num_threads=1)
    runtime = Watching()
    runtime.start(torch.arange(5))
    model.forward(torch.tensor(PROMPT[:5]), torch.arange(5), runtime)
    assert seen == [(i, (5, 4, 16), (5, 2, 16), (5, 2, 16)) for i in range(3)]
    assert model.num_layers == 3


def test_model_with_scaled_logits_uses_its_own_head(tmp_path: Path) -> None:
    """Granite scales embeddings, residuals, attention and logits: the model's own forward does it."""
    from transformers import AutoModelForCausalLM, GraniteConfig

    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        logits_scaling=0.125,
        attention_multiplier=0.3,
        embedding_multiplier=2.0,
        residual_multiplier=0.7,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    ids = [i % 64 for i in PROMPT]
    expected = reference_generate(tmp_path, ids, 1)
    runtime, logits = run_spans(hf.load_model(tmp_path, "float32", num_threads=1), ids, chunks_of(5, len(ids)))
    np.testing.assert_allclose(logits, expected.logits[0], atol=ATOL)
    assert runtime.scales == {0.3}


def test_architecture_around_the_interface_is_refused(tmp_path: Path) -> None:
    model = hf.load_model(make_toy_model(tmp_path, "llama"), "float32", num_threads=1)
    model.model.base_model.layers[1].self_attn.layer_idx = 0

    class Echo:
        def attention(self, layer_idx, q, k, v, scale):
            return q

    with pytest.raises(ModelError, match=r"llama.*\[0, 0\].*not supported"):
        model.forward(torch.tensor([1, 2, 3]), torch.arange(3), Echo())


def test_sliding_window_reaching_the_attention_is_refused(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path, "mistral")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 8}))
    model = hf.load_model(folder, "float32", num_threads=1)
    with pytest.raises(ModelError, match="MistralAttention asks for sliding_window"):
        model.forward(torch.tensor([1, 2, 3]), torch.arange(3), DenseRuntime())


def test_attention_outside_a_forward_says_so(tmp_path: Path) -> None:
    model = hf.load_model(make_toy_model(tmp_path, "llama"), "float32", num_threads=1)
    with pytest.raises(RuntimeError, match=r"only inside LoadedModel\.forward"):
        model.model(torch.tensor([[1, 2]]))


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_toy_model(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    lost = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 missing: model\.layers\.1\.mlp\.up_proj\.weight first"):
        hf.load_model(folder, "float32", num_threads=1)
    weights["model.layers.1.mlp.up_proj.weight"] = lost[:-1].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"cannot be loaded|mismatched"):
        hf.load_model(folder, "float32", num_threads=1)


def test_unknown_dtype_and_threads(tmp_path: Path) -> None:
    folder = make_toy_model(tmp_path, "llama")
    with pytest.raises(UnknownNameError, match="bfloat16"):
        hf.load_model(folder, "bfloat61", num_threads=1)
    hf.load_model(folder, "float32", num_threads=2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
