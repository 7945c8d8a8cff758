"""A fingerprint of a model folder that tells two models of one shape apart, in milliseconds; standard library alone.

It covers config.json, each weights file's name, size and header, and samples of its data spread over the whole file: a
fine-tuned copy has the header of the original, and other numbers everywhere.
"""

import hashlib
import json
from pathlib import Path

_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096


def fingerprint(folder: Path) -> str:
    """Return a sha256 in hex. Raises OSError or ValueError where the folder holds no readable model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise ValueError(f"{folder} has no safetensors files")
    for path in weights:
        size = path.stat().st_size
        digest.update(f"\n{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for index in range(_NUM_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
