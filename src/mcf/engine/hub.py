"""Fetch a model from the Hugging Face Hub, or from its cache on this machine.

The hub's own library does the work: its cache folder, HF_HUB_OFFLINE, HF_TOKEN and the like all keep their meaning.
Pickled weights and code are never downloaded.
"""

import re
from pathlib import Path
from typing import Any

from mcf.engine.gguf_parts import Progress
from mcf.errors import ModelError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*", "consolidated*.safetensors", "adapter_*", "*.gguf"]  # other formats of the same weights


def download(hub_id: str, progress: Progress, *, config_only: bool = False) -> Path:
    """Return the folder of a hub model's snapshot; downloads only what is missing; `config_only`: config.json.

    Raises `ModelError` with one line where the model cannot be had: unknown, gated, offline and not cached, no network.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError:
        raise ModelError(
            f"{hub_id!r} is no file or folder here, and the hub needs the huggingface_hub package: expected a model "
            "on this machine; give a folder or a .gguf file, or do `pip install huggingface_hub`"
        ) from None
    try:
        folder = Path(
            snapshot_download(
                hub_id,
                allow_patterns=["config.json"] if config_only else WANTED,
                ignore_patterns=UNWANTED,
                tqdm_class=_bar(progress),
            )
        )
    except GatedRepoError as error:
        raise _refuse(hub_id, "is gated on the hub", "ask for access on its page and set HF_TOKEN") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise _refuse(hub_id, "is no file or folder here and no model on the hub", "check the name") from error
    except LocalEntryNotFoundError as error:
        raise _refuse(hub_id, *_unreachable(error)) from error
    except (HfHubHTTPError, OSError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise _refuse(hub_id, f"could not be downloaded ({why})", "try again later") from error
    if not config_only and not any(folder.glob("*.safetensors")):
        raise _refuse(
            hub_id,
            "has no safetensors weights on the hub (pickled weights are never downloaded)",
            "choose a model with safetensors, or download a .gguf file and give that",
        )
    return folder


def _unreachable(error: Exception) -> tuple[str, str]:
    if _is_offline():
        return (
            "is no file or folder here and not (wholly) in the hub cache, and HF_HUB_OFFLINE is set",
            "unset it, or download the model where there is a network",
        )
    cause = type(error.__cause__ or error).__name__
    return (
        f"is no file or folder here and not (wholly) in the hub cache, and the hub cannot be reached ({cause})",
        "check the name and the network",
    )


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _bar(progress: Progress) -> type:
    """Return a progress bar class for the hub's library that draws nothing and reports the bytes to `progress`."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    most = 0.0

    class _Bar(tqdm):  # type: ignore[misc]  # tqdm is untyped
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **(kwargs | {"disable": True}))
            self.counts_bytes = kwargs.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            nonlocal most
            self.n += n or 0
            if self.counts_bytes and self.n > most:
                most = self.n
                progress("download", most, max(most, float(self.total or 0)))

    return _Bar


def _refuse(hub_id: str, what: str, do: str) -> ModelError:
    return ModelError(f"{hub_id!r} {what}: expected a folder, a .gguf file, a hub id or demo; {do}")
