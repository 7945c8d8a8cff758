"""A worker that runs out of memory: recognised, and said in words. Needs the standard library alone."""

import os
import re
import sys
import threading
from pathlib import Path

from mcf.units import format_bytes

KIND = "OutOfMemory"
EXIT_CODE = 71  # of a worker that could not even say so in a frame
CURE = "use more workers, a smaller --kv-memory or --chunk-tokens, or --dtype bfloat16"
_DOING = {
    "join": "while its libraries were loaded",
    "load": "while the weights were loaded",
    "plan": "while the KV pool was taken",
    "prefill": "in prefill",
    "decode": "in decode",
}
# what torch, numpy, safetensors and the system say; the first two name how much was asked for
_ASKED = re.compile(r"allocate (?P<bytes>\d+) bytes|[Uu]nable to allocate (?P<size>[\d.]+ [KMGTPE]?i?B)")
_SAYS = (
    *("can't allocate memory", "Cannot allocate memory", "Unable to allocate", "bad_alloc", "not enough memory"),
    *("failed to map segment", "can't start new thread"),  # a library, a thread's stack
)


def is_out_of_memory(exc: BaseException) -> bool:
    """Say whether an exception, or one that it came from, means that memory was refused."""
    if isinstance(exc, MemoryError) or any(words in str(exc) for words in _SAYS):
        return True
    before = exc.__cause__ or exc.__context__
    return before is not None and is_out_of_memory(before)


def leave_when_refused() -> None:
    """Have this process end, with `EXIT_CODE`, where an exception that nobody can handle is a refusal of memory.

    A thread that gets no memory while it starts dies unheard, and whoever started it waits for ever.
    """
    sys.unraisablehook = _on_unraisable
    threading.excepthook = _on_thread_end


def _on_unraisable(args: "sys.UnraisableHookArgs") -> None:
    _leave_if_memory(args.exc_value)
    sys.__unraisablehook__(args)


def _on_thread_end(args: threading.ExceptHookArgs) -> None:
    _leave_if_memory(args.exc_value)
    threading.__excepthook__(args)


def _leave_if_memory(exc: BaseException | None) -> None:
    if exc is not None and is_out_of_memory(exc):
        os._exit(EXIT_CODE)


def in_words(text: str, doing: str) -> str:
    """Return one line from an exception's text: where (`doing` is a frame's type), how much was asked, what to do."""
    found = _ASKED.search(text)
    asked = ""
    if found is not None:
        size = found["size"] or format_bytes(int(found["bytes"]))
        asked = f": it asked for {size} more and did not get it"
    where = f" {_DOING[doing]}" if doing in _DOING else ""
    return f"out of memory{where}{asked}; {CURE}"


def num_oom_kills() -> int | None:
    """Return how many processes this machine has killed for want of memory, None where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
    return int(counts[0]) if counts else None
