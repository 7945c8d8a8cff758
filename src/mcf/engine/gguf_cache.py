"""Keep each converted GGUF model in a cache folder named by the file's sha256.

Rules:
1. A folder in the cache is either whole or absent: it is made under another name and renamed when it is complete.
2. One process converts a file at a time (a lock file); others wait and use its result.
3. A folder is believed only if its manifest fits: every file has its size, small files and the weights' header their
   sha256. Anything else (an older format, a lost or damaged file) is removed and made again.
4. What a killed conversion leaves behind is removed by the next one, which holds the lock.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcf.engine.gguf_convert import convert, plan, weight_bytes
from mcf.engine.gguf_parts import GgufModel, Progress
from mcf.errors import ModelError

FORMAT = 1  # of the converted folders; a new number makes old folders stale
MANIFEST = "mcf-manifest.json"
_HASHED_BYTES = 16 * 1024 * 1024  # files up to this size are hashed whole, larger ones over their first bytes
_SPARE_BYTES = 64 * 1024 * 1024  # tokenizer, config and file system overhead


def converted_folder(model: GgufModel, *, root: Path, progress: Progress) -> tuple[Path, str]:
    """Return the folder of the converted model and the sha256 of its GGUF file; convert unless it is there already.

    Raises `ModelError` where the model cannot be converted or the cache cannot be written.
    """
    _, tensors = plan(model)  # refuse before reading the whole file
    sha256 = model.sha256(progress)
    folder = root / "gguf" / f"{sha256}-v{FORMAT}"
    if not is_whole(folder):
        try:
            _make(model, folder, weight_bytes(tensors), progress)
        except OSError as error:
            raise ModelError(
                f"the cache folder {root} cannot be written ({error.strerror or error}): expected a folder with room "
                f"for {_mib(weight_bytes(tensors))}; repair it, or set MCF_CACHE to another folder"
            ) from error
    return folder, sha256


def is_whole(folder: Path) -> bool:
    """Say whether the folder is complete and undamaged, as far as rule 3 looks."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest["files"] == _describe_files(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make(model: GgufModel, folder: Path, need_bytes: int, progress: Progress) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, also by a kill
        if is_whole(folder):
            return  # another process made it while this one waited
        for leftover in folder.parent.glob(f"{folder.name}.tmp*"):
            shutil.rmtree(leftover, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        _check_room(folder.parent, need_bytes)
        unfinished = folder.with_name(f"{folder.name}.tmp{os.getpid()}")
        unfinished.mkdir()
        try:
            convert(model, unfinished, progress)
            _write_manifest(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _check_room(folder: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need_bytes + _SPARE_BYTES:
        raise ModelError(
            f"got {_mib(free)} free in {folder}: expected {_mib(need_bytes + _SPARE_BYTES)} for the converted model; "
            "free some, or set MCF_CACHE to another folder"
        )


def _write_manifest(folder: Path) -> None:
    manifest = {"format": FORMAT, "files": _describe_files(folder)}
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def _describe_files(folder: Path) -> Mapping[str, Any]:
    paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    return {path.name: {"bytes": path.stat().st_size, "sha256": _head_sha256(path)} for path in paths}


def _head_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(_HASHED_BYTES)).hexdigest()


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
