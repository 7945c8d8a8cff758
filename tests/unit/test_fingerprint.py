"""The fingerprint tells two models of one shape apart, and one model from no copy of it."""

import json
import shutil

import pytest

from mcf.dist.fingerprint import fingerprint
from mcf.testing import make_toy_model


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy_model(tmp_path_factory.mktemp("fingerprints") / "toy", tokenizer=False)


@pytest.fixture
def copy(toy, tmp_path):
    return shutil.copytree(toy, tmp_path / "copy")


def test_a_copy_under_another_name_and_in_other_files_is_the_same_model(toy, copy, tmp_path):
    assert fingerprint(copy) == fingerprint(toy)
    assert fingerprint(make_toy_model(tmp_path / "shards", tokenizer=False, shard_bytes=1 << 14)) == fingerprint(toy)


def test_what_only_describes_does_not_matter_and_what_computes_does(toy, copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "_name_or_path": "elsewhere", "transformers_version": "1"}))
    assert fingerprint(copy) == fingerprint(toy)
    (copy / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))
    assert fingerprint(copy) != fingerprint(toy)


@pytest.mark.parametrize("at", [-1, -4096])
def test_other_numbers_are_another_model(toy, copy, at):
    (path,) = copy.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert fingerprint(copy) != fingerprint(toy)


def test_a_folder_without_weights_has_none(copy):
    next(copy.glob("*.safetensors")).unlink()
    with pytest.raises(ValueError, match="no safetensors files"):
        fingerprint(copy)
