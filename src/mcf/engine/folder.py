"""Check a Hugging Face model folder before anything heavy is imported or loaded."""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcf.engine.notmodels import explain_foreign_file
from mcf.errors import ModelError
from mcf.model import check_supported

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZER_SETS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


def check_folder(folder: Path) -> dict[str, Any]:
    """Return the folder's config after checking config, weights and tokenizer files; loads no weights.

    Raises `ModelError` with one line for anything missing, cut off, unsafe (pickled weights, code in the model
    repository) or not supported.
    """
    config = read_config(folder)
    check_weights(folder)
    check_tokenizer_files(folder)
    return config


def read_config(folder: Path) -> dict[str, Any]:
    """Return `config.json` as a dict, or raise `ModelError` where it is missing, no JSON or not supported."""
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(_no_config(folder))
    config = read_json(path)
    try:
        check_supported(config)
    except ModelError as error:
        if code := _own_code(config):
            raise ModelError(
                f"{folder.name} needs its own Python code ({code}): expected a model that transformers knows by "
                "itself, since MCF never runs code from a model folder; choose another model"
            ) from error
        raise
    return config


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of the model folder, or raise `ModelError`."""
    explain_foreign_file(path, expected="a JSON file of the model")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path.name} in {path.parent} is not JSON ({error}): expected an object; get the file again"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(f"{path.name} in {path.parent} holds a {type(value).__name__}: expected a JSON object")
    return value


def eos_ids(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end ids of `generation_config.json` and `config.json` together, in ascending order."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    found: set[int] = set()
    for value in (generation.get("eos_token_id"), config.get("eos_token_id")):
        ids = value if isinstance(value, list) else [value]
        found |= {i for i in ids if isinstance(i, int) and not isinstance(i, bool)}
    return tuple(sorted(found))


def check_weights(folder: Path) -> None:
    """Raise `ModelError` unless the folder's safetensors files are all there and whole."""
    weights = folder / WEIGHTS
    if weights.exists():
        safetensors_header(weights)
    elif (folder / INDEX).exists():
        _check_shards(folder, read_json(folder / INDEX))
    else:
        raise ModelError(_no_weights(folder))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that make up the model, in name order."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    return [folder / name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]


def fingerprint(folder: Path, config: Mapping[str, Any]) -> str:
    """Return a sha256 over the config and each weights file's name, size and header."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for path in weight_files(folder):
        header = json.dumps(safetensors_header(path), sort_keys=True)
        digest.update(f"\n{path.name} {path.stat().st_size} {header}".encode())
    return digest.hexdigest()


def safetensors_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file after checking that the file is as long as its header says.

    Format: 8 bytes of header length (little-endian), a JSON header, then the data.
    """
    explain_foreign_file(path, expected="a safetensors file")
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise ModelError(
                f"{path.name} is no safetensors file (header length {length}): expected safetensors; get the file again"
            )
        if 8 + length > size:
            raise _cut(path, size, 8 + length, "inside its header")
        header = _parse_header(path, file.read(length))
    end = 8 + length + max((int(t["data_offsets"][1]) for k, t in header.items() if k != "__metadata__"), default=0)
    if size < end:
        raise _cut(path, size, end, "inside its data")
    if size > end:
        raise ModelError(f"{path.name} has {size} bytes: expected {end}, as its header says; get the file again")
    return header


def check_tokenizer_files(folder: Path) -> None:
    """Raise `ModelError` unless one full set of tokenizer files is there, and none of them is a placeholder."""
    for names in _TOKENIZER_SETS:
        if all((folder / name).exists() for name in names):
            for name in names:
                explain_foreign_file(folder / name, expected="a tokenizer file of the model")
            return
    raise ModelError(
        f"{folder} has no tokenizer: expected tokenizer.json (or tokenizer.model, or vocab.json with merges.txt); "
        "get the whole model folder"
    )


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw)
        for name, entry in header.items():
            if name != "__metadata__" and not 0 <= entry["data_offsets"][0] <= entry["data_offsets"][1]:
                raise ValueError(name)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        raise ModelError(
            f"{path.name} is no safetensors file (its header does not read): expected safetensors; get the file again"
        ) from None
    return dict(header)


def _check_shards(folder: Path, index: Mapping[str, Any]) -> None:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(map(_is_file_name, weight_map.values())):
        raise ModelError(f"{INDEX} in {folder} has no usable weight_map: expected tensor names to file names")
    shards = sorted(set(weight_map.values()))
    missing = [name for name in shards if not (folder / name).exists()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(shards)} weight files ({missing[0]} first): expected every shard "
            f"that {INDEX} names; download the rest"
        )
    headers = {name: safetensors_header(folder / name) for name in shards}
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise ModelError(
                f"{name} in {folder} lacks tensor {tensor!r}: expected it there, as {INDEX} says; get the file again"
            )


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _own_code(config: Mapping[str, Any]) -> str:
    auto_map = config.get("auto_map")
    return str(next(iter(auto_map.values()), "")) if isinstance(auto_map, dict) else ""


def _no_config(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"{folder} has no config.json but {ggufs[0]}: expected a model folder; give the .gguf file itself"
    return (
        f"{folder} has no config.json: expected a Hugging Face model folder (config.json, safetensors weights, "
        "tokenizer files), a .gguf file, a hub id or demo"
    )


def _no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} has only pickled weights ({pickled[0]}), which can execute code when they are loaded: expected "
            "safetensors; convert them where you trust them with transformers' save_pretrained, or with the "
            "safetensors/convert space on the hub"
        )
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    hint = f", not {others[0]}" if others else ""
    return f"{folder} has no weights: expected {WEIGHTS} or {INDEX} with its shards{hint}; get the whole model folder"


def _cut(path: Path, size: int, expected: int, where: str) -> ModelError:
    return ModelError(
        f"{path.name} ends at byte {size} {where}: expected {expected} bytes ({expected - size} are missing); "
        "the download was cut off, get the file again"
    )
