"""Each mistake of the user gives one clear line and exit code 2: what came, what was expected, what to do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import mcf
from mcf.testing.toys import cut_file, make_toy_gguf


def refusal(*args: str, stdin: str | None = None) -> str:
    done = mcf(*args, stdin=stdin)
    assert (done.code, done.out, done.left) == (2, "", [])
    assert done.err.count("\n") == 1
    return done.error


def refused_run(model: object, *options: str) -> str:
    return refusal("run", str(model), "--prompt", "hello", *options)


@pytest.fixture
def copy(toy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy, tmp_path / "copy"))


def test_a_closed_stdout() -> None:
    command = ["sh", "-c", f'exec "{sys.executable}" -m mcf show plan.txt >&-']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: stdout is closed: expected an open one")


def test_a_missing_model(tmp_path) -> None:
    assert "does not exist: expected a Hugging Face folder, a .gguf file" in refused_run(tmp_path / "none")


def test_a_truncated_model(copy) -> None:
    cut_file(copy / "model.safetensors", 0.5)
    error = refused_run(copy)
    assert "model.safetensors ends at byte" in error
    assert "get the file again" in error


def test_a_truncated_gguf_file(tmp_path) -> None:
    path = make_toy_gguf(tmp_path / "toy.gguf")
    cut_file(path, 0.9)
    assert "toy.gguf" in refused_run(path)


def test_a_file_of_another_format(tmp_path) -> None:
    page = tmp_path / "model.gguf"
    page.write_text("<!doctype html><title>Log in</title>")
    assert "is an HTML page" in refused_run(page)
    for text in ("not a model at all", "no", "some words of a prompt\n"):
        page.write_text(text)
        assert "model.gguf is not a model file, it starts with" in refusal("plan", str(page), "--prompt-tokens", "9")


def test_pickled_weights(copy) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    assert "has only pickled weights (pytorch_model.bin), which can execute code" in refused_run(copy)


@pytest.mark.parametrize("text", ["", " \n\t "])
def test_an_empty_prompt(toy, text) -> None:
    assert "got an empty prompt" in refusal("run", str(toy), "--prompt", text)
    assert "got an empty prompt in '-'" in refusal("run", str(toy), "--prompt-file", "-", stdin=text)


def test_exactly_one_prompt(toy, tmp_path) -> None:
    both = ["--prompt", "a", "--prompt-file", str(tmp_path / "b")]
    assert refusal("run", str(toy), *both).startswith("error: got both --prompt and --prompt-file")
    assert refusal("run", str(toy)).startswith("error: got no prompt: expected --prompt TEXT or --prompt-file FILE")


def test_prompt_files_that_cannot_be_read(toy, tmp_path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for name, words in (
        ("none", "No such file"),
        (".", "Is a directory"),
        ("latin", "is not UTF-8 text (byte 0xe9 at 3)"),
    ):
        assert words in refusal("run", str(toy), "--prompt-file", str(tmp_path / name))


def test_an_unknown_policy_is_guessed(toy) -> None:
    assert refused_run(toy, "--policy", "mars-papr") == (
        "error: unknown policy 'mars-papr': did you mean 'mars-paper'? "
        "known are full, gather, mars, mars-paper, one-shot, pass-q, pd, ring, ulysses, zigzag"
    )


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--workers", "0", "got 0 workers: expected 1 to 1024"),
        ("--workers", "two", "got 'two' for --workers: expected a whole number"),
        ("--chunk-tokens", "0", "--chunk-tokens: got '0' as number of tokens (it must be above zero)"),
        ("--kv-memory", "12XB", "--kv-memory: got '12XB' as size in bytes (unknown unit 'XB')"),
        ("--kv-memory", "-1", "--kv-memory: got '-1' as size in bytes (it is negative)"),
        ("--max-tokens", "0", "--max-tokens: got '0' as number of tokens"),
        ("--dtype", "float16", "unknown dtype 'float16': did you mean 'bfloat16'?"),
        ("--timeout", "0", "got 0 for --timeout: expected more than 0 s"),
        ("--timeout", "soon", "--timeout: got 'soon' as duration"),
        ("--seed", "-1", "got seed -1"),
        ("--temperature", "nan", "got temperature nan"),
        ("--top-p", "0", "got top_p 0.0: expected more than 0"),
        ("--trace", "/no/such/folder/t.json", "there is no directory '/no/such/folder'"),
        ("--trace", "/", "it is a directory"),
    ],
)
def test_option_values_out_of_range(toy, option, value, words) -> None:
    assert words in refused_run(toy, option, value)


def test_a_plan_beyond_the_window(toy) -> None:
    assert "got a prompt of 513 tokens: toy has a window of 512" in refusal("plan", str(toy), "--prompt-tokens", "513")


def test_a_plan_that_memory_cannot_hold_says_how_much_is_missing(toy) -> None:
    error = refusal("plan", str(toy), "--prompt-tokens", "500", "--kv-memory", "64KiB")
    assert "got a KV budget of 64 KiB on node 0" in error
    assert "bytes) more" in error
