"""Checks of what each machine has: memory, cores, disk, open files. Workers of one machine share what it has."""

from collections.abc import Iterator, Sequence

from mcf.engine.doctor.survey import ERROR, WARNING, Finding, NodeReport, Survey
from mcf.units import count, format_bytes

GIB = 1 << 30
BARE_BYTES = GIB  # a worker without a model: Python, torch and transformers, with room to breathe
SPARE = 0.1  # of what is needed: below it the system starts to swap and to kill
SWAP_BYTES = 256 << 20  # less has often lain there for weeks and does no harm
BUSY = 0.5  # load per core: from here on a worker waits for its core
CACHE_BYTES = GIB  # a small model, converted
FILES_BARE, FILES_PER_PEER = 256, 8  # libraries and weights; sockets of Gloo


def room_bytes(workers: Sequence[NodeReport]) -> int | None:
    """Return the memory that each of a machine's workers can take: available, or what control groups leave."""
    memory = workers[0].facts["memory"]
    both = [size for size in (memory["available_bytes"], memory["group_left_bytes"]) if size is not None]
    return min(both) // len(workers) if both else None


def check_memory(survey: Survey) -> Iterator[Finding]:
    """Weights, buffers and the KV budget of all workers fit into what their machine has free, with some to spare."""
    for workers in survey.machines():
        memory, room = workers[0].facts["memory"], room_bytes(workers)
        need = survey.needs.least_bytes if survey.needs else BARE_BYTES
        if room is not None and room < need * (1 + SPARE):
            yield _too_little(survey, workers, need, room)
        if (memory["swap_used_bytes"] or 0) > SWAP_BYTES:
            what = f"{format_bytes(memory['swap_used_bytes'])} are swapped out: memory was short lately"
            yield _problem(
                WARNING, "memory", workers, what, "stop other programs; a swapped-out weight costs 1000 times"
            )
        limit = memory["process_limit_bytes"]
        if limit is not None and limit < need:
            what = f"a process may map {format_bytes(limit)}, a worker needs {format_bytes(need)}"
            yield _problem(ERROR, "memory", workers, what, "ulimit -v unlimited")


def _too_little(survey: Survey, workers: Sequence[NodeReport], need: int, room: int) -> Finding:
    level = ERROR if room < need and survey.needs else WARNING
    memory = workers[0].facts["memory"]
    cause = (
        "its control group's limit" if (memory["group_left_bytes"] or 1 << 62) < memory["available_bytes"] else "RAM"
    )
    what = f"{format_bytes(room)} of {cause} for each of {len(workers)} workers, which need {_parts(survey)}"
    smaller = ", a smaller --kv-memory or --dtype bfloat16" if survey.needs else ""
    return _problem(level, "memory", workers, what, f"free memory, use fewer workers per machine{smaller}")


def _parts(survey: Survey) -> str:
    needs = survey.needs
    if needs is None:
        return f"{format_bytes(BARE_BYTES)} before any model"
    kv = "" if needs.kv_bytes is None else f", KV {format_bytes(needs.kv_bytes)}"
    parts = f"weights {format_bytes(needs.weight_bytes)}, buffers {format_bytes(needs.buffer_bytes)}{kv}"
    return f"{format_bytes(needs.least_bytes)} ({parts})"


def memory_seen(survey: Survey) -> str:
    """Say what is free, and with a model how many tokens of KV it holds."""
    rooms = [room for workers in survey.machines() if (room := room_bytes(workers)) is not None]
    if not rooms:
        return "not told by this system"
    text = f"{format_bytes(min(rooms))} free for each worker"
    if survey.needs is None:
        return text
    tokens = max(0, min(rooms) - survey.needs.weight_bytes - survey.needs.buffer_bytes) // survey.needs.kv_token_bytes
    return f"{text}, {_parts(survey)} needed; room for the KV of {count(tokens, 'token')}"


def check_cores(survey: Survey) -> Iterator[Finding]:
    """Threads have cores of their own that nobody else uses, run at full speed, and compute bf16 where it is asked."""
    least = max(_cores(workers) / len(workers) for workers in survey.machines())
    for workers in survey.machines():
        cpu, cores = workers[0].facts["cpu"], _cores(workers)
        threads = sum(node.facts["cpu"]["threads"] or 1 for node in workers)
        if threads > cores:
            what = f"{threads} threads of {len(workers)} workers on {cores:g} cores"
            yield _problem(WARNING, "cores", workers, what, "use fewer workers or threads: they take turns otherwise")
        if cores / len(workers) < least:
            what = f"{cores / len(workers):g} cores for each worker, others have {least:g}"
            yield _problem(WARNING, "cores", workers, what, "use equal machines: the slowest node sets the pace")
        if cpu["load"] is not None and cpu["load"] > BUSY * cpu["cores"]:
            what = f"a load of {cpu['load']:.1f} on {cpu['cores']} cores: other programs run"
            yield _problem(WARNING, "cores", workers, what, "stop them, above all before --measure")
        if cpu["governor"] and "performance" not in cpu["governor"].split("/"):
            what = f"the frequency governor is {cpu['governor']}"
            yield _problem(WARNING, "cores", workers, what, "cpupower frequency-set -g performance")
        if survey.needs and survey.needs.dtype == "bfloat16" and not {"avx512_bf16", "amx_bf16"} & set(cpu["flags"]):
            what = "no instruction for bfloat16 products (AVX512-BF16, AMX)"
            yield _problem(WARNING, "cores", workers, what, "use --dtype float32: it is faster here")


def _cores(workers: Sequence[NodeReport]) -> float:
    cpu = workers[0].facts["cpu"]
    return float(min(cpu["allowed_cores"], cpu["quota_cores"] or cpu["allowed_cores"]))


def cores_seen(survey: Survey) -> str:
    """Say which processors, how many cores, and what they do with bf16."""
    parts = []
    for workers in survey.machines():
        cpu = workers[0].facts["cpu"]
        flags = ", ".join(cpu["flags"]) or "no AVX2"
        parts.append(f"{workers[0].facts['host']}: {cpu['model']}, {_cores(workers):g} cores ({flags})")
    return "; ".join(parts)


def check_disk(survey: Survey) -> Iterator[Finding]:
    """The cache of converted models has room and can be written."""
    for workers in survey.machines():
        disk = workers[0].facts["disk"]
        if not disk["is_writable"]:
            what = f"the cache folder {disk['path']} cannot be written"
            yield _problem(
                WARNING, "disk", workers, what, "set MCF_CACHE to a folder of yours, for GGUF and hub models"
            )
        elif disk["free_bytes"] < CACHE_BYTES:
            what = f"{format_bytes(disk['free_bytes'])} free at {disk['path']}, where converted models go"
            yield _problem(WARNING, "disk", workers, what, "free some, or set MCF_CACHE to another disk")


def disk_seen(survey: Survey) -> str:
    """Say what is free for converted models."""
    free = min(workers[0].facts["disk"]["free_bytes"] for workers in survey.machines())
    return f"{format_bytes(free)} free for converted models"


def check_files(survey: Survey) -> Iterator[Finding]:
    """A worker may open enough files: weights, libraries, and sockets to each other worker."""
    need = FILES_BARE + FILES_PER_PEER * len(survey.nodes)
    for node in survey.nodes:
        if 0 <= node.facts["open_files"] < need:
            what = f"it may open {node.facts['open_files']} files, up to {need} are needed"
            yield Finding(level=ERROR, check="files", node=node.label, what=what, do=f"ulimit -n {2 * need}")


def files_seen(survey: Survey) -> str:
    """Say how many files a worker may open."""
    return f"{min(node.facts['open_files'] for node in survey.nodes):,} open files allowed"


def _problem(level: str, check: str, workers: Sequence[NodeReport], what: str, do: str) -> Finding:
    where = f"workers {workers[0].rank}-{workers[-1].rank}" if len(workers) > 1 else f"worker {workers[0].rank}"
    return Finding(level=level, check=check, node=f"{where} on {workers[0].facts['host']}", what=what, do=do)
