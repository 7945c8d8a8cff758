"""transformers as a process that obeys: one worker with its fused attention, or two with its tensor parallelism.

    python peer.py SOCKET FOLDER DTYPE                       one process
    torchrun --nproc-per-node 2 peer.py SOCKET FOLDER DTYPE  tp_plan="auto" over Gloo

Rank 0 connects to a unix socket and answers each line {"ids": [...], "new_tokens": n} with
{"ttft_s": ..., "token_s": [...]}.
"""

import json
import os
import socket
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

Greedy = tuple[float, list[float]]


def load(folder: str, dtype: str, *, is_parallel: bool) -> Any:
    """Load the model with transformers' fused attention."""
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": "sdpa", "local_files_only": True}
    if is_parallel:
        dist.init_process_group("gloo")
        options["tp_plan"] = "auto"
    library: Any = AutoModelForCausalLM
    return library.from_pretrained(folder, **options).eval()


def generate(model: Any, ids: list[int], num_new: int) -> Greedy:
    """Time the prompt in one forward, and greedy steps after it."""
    times: list[float] = []
    cache, step = None, ids
    with torch.inference_mode():
        for _ in range(num_new):
            begin_s = time.perf_counter()
            output = model(torch.tensor([step]), cache=cache, use_cache=True, logits_to_keep=1)
            cache, step = output.cache, [int(output.logits[0, -1].argmax())]
            times.append(time.perf_counter() - begin_s)
    return times[0], times[1:]


def shared(request: dict[str, Any] | None) -> dict[str, Any] | None:
    """Give rank 0's request to all ranks; None ends them."""
    numbers = torch.tensor([0, 0] if request is None else [len(request["ids"]), request["new_tokens"]])
    dist.broadcast(numbers, 0)
    if not int(numbers[0]):
        return None
    ids = torch.tensor(request["ids"]) if request else torch.empty(int(numbers[0]), dtype=torch.int64)
    dist.broadcast(ids, 0)
    return {"ids": ids.tolist(), "new_tokens": int(numbers[1])}


def main() -> None:
    """Obey until the socket closes."""
    path, folder, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    is_parallel, rank = "RANK" in os.environ, int(os.environ.get("RANK", "0"))
    model = load(folder, dtype, is_parallel=is_parallel)
    head = socket.socket(socket.AF_UNIX)
    if rank == 0:
        head.connect(path)
    with head.makefile("rw", encoding="utf-8") as lines:
        while True:
            line = lines.readline() if rank == 0 else ""
            request = json.loads(line) if line else None
            request = shared(request) if is_parallel else request
            if request is None:
                return
            ttft_s, token_s = generate(model, request["ids"], request["new_tokens"])
            if rank == 0:
                lines.write(json.dumps({"ttft_s": ttft_s, "token_s": token_s}) + "\n")
                lines.flush()


if __name__ == "__main__":
    main()
