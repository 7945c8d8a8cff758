"""The KV memory of one node: a preallocated page pool and stream slots, accounted to the byte where memory is taken.

Layout: one tensor per KV-head group, [L, P * page, 2, heads, d]: K and V lie together per token, so that a run of
tokens of one layer is one contiguous piece of memory: it is sent as it lies. Own blocks fill pages consecutively from
the bottom; copies take pages of their own from the top. Stream slots lie in a flat buffer beside it.
"""

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mcf.errors import RunError
from mcf.schedule.meta import ScheduleMeta

Run = tuple[int, int]  # first token place, number of tokens


class PoolError(RunError):
    """More memory asked for than the pool has: the schedule's peak and the executor disagree."""


@dataclass(kw_only=True)
class Copy:
    """Where one block (or its copy) lies: runs of token places in its group's tensor, and the pages to give back."""

    runs: list[Run]
    pages: list[int] = field(default_factory=list)


class Meter:
    """Bytes in use and their high-water mark."""

    def __init__(self) -> None:
        self.in_use_bytes = 0
        self.peak_bytes = 0
        self.spilled_bytes = 0
        self.num_spills = 0

    def take(self, num_bytes: int) -> None:
        """Count bytes as in use."""
        self.in_use_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_use_bytes)

    def spill(self, num_bytes: int) -> None:
        """Count bytes that had to be allocated outside the preallocated memory: staging, and what did not fit."""
        self.spilled_bytes += num_bytes
        self.num_spills += 1

    def give(self, num_bytes: int) -> None:
        """Count bytes as given back."""
        self.in_use_bytes -= num_bytes
        assert self.in_use_bytes >= 0, "more memory given back than taken"


class PagePool:
    """Pages of one KV-head group. `capacity` is in pages; each page holds `page` token places in every layer."""

    def __init__(self, meta: ScheduleMeta, num_heads: int, capacity: int, dtype: torch.dtype, meter: Meter) -> None:
        self.page = meta.page_tokens
        shape = (meta.num_layers, capacity * self.page, 2, num_heads, meta.head_dim)
        self.kv = torch.empty(shape, dtype=dtype)
        self.page_bytes = self.page * meta.kv_row_bytes(num_heads) * meta.num_layers
        self.meter = meter
        self.is_free = np.ones(capacity, dtype=bool)
        self.own_pages: list[int] = []
        self.own_tokens = 0
        self.num_reserved = 0

    def reserve(self, num_pages: int) -> None:
        """Count pages for generated tokens from the start; `append_own` uses them up last."""
        self.num_reserved += num_pages
        self.meter.take(num_pages * self.page_bytes)

    def append_own(self, num_tokens: int, *, reserved: bool = False) -> list[Run]:
        """Places for further tokens of the node's own blocks; with `reserved`, new pages come out of the reserve."""
        first = self.own_tokens
        self.own_tokens += num_tokens
        missing = -(-self.own_tokens // self.page) - len(self.own_pages)
        for _ in range(missing):
            self.own_pages.append(self._take_page(self._next_own()))
        if reserved:
            assert missing <= self.num_reserved, "generated tokens outgrow the decode reserve"
            self.num_reserved -= missing
        else:
            self.meter.take(missing * self.page_bytes)
        return list(self._own_runs(first, num_tokens))

    def take_copy(self, num_tokens: int) -> Copy:
        """Pages of its own for one block's copy: one contiguous run if there is one, from the top."""
        count = -(-num_tokens // self.page)
        pages = self._top_run(count)
        for page in pages:
            self._take_page(page)
        self.meter.take(count * self.page_bytes)
        return Copy(runs=list(self._page_runs(pages, num_tokens)), pages=pages)

    def free_copy(self, copy: Copy) -> None:
        """Give a copy's pages back."""
        assert copy.pages, "a copy is freed twice"
        assert not self.is_free[copy.pages].any(), "a copy is freed twice"
        self.is_free[copy.pages] = True
        self.meter.give(len(copy.pages) * self.page_bytes)
        copy.pages = []

    def _next_own(self) -> int:
        wanted = self.own_pages[-1] + 1 if self.own_pages else 0
        if wanted < len(self.is_free) and self.is_free[wanted]:
            return wanted
        free = np.flatnonzero(self.is_free)
        if not len(free):
            raise PoolError(f"no free page among {len(self.is_free)}: the schedule's peak is too small")
        return int(free[0])

    def _top_run(self, count: int) -> list[int]:
        free = np.flatnonzero(self.is_free)
        if len(free) < count:
            raise PoolError(
                f"{count} pages wanted, {len(free)} of {len(self.is_free)} free: the schedule's peak is too small"
            )
        for end in range(len(free), count - 1, -1):
            if free[end - 1] - free[end - count] == count - 1:
                return free[end - count : end].tolist()  # type: ignore[no-any-return]
        return free[len(free) - count :].tolist()  # type: ignore[no-any-return]

    def _take_page(self, page: int) -> int:
        assert self.is_free[page], "a page is taken twice"
        self.is_free[page] = False
        return page

    def _own_runs(self, first: int, num_tokens: int) -> Iterator[Run]:
        places = [
            (self.own_pages[t // self.page] * self.page + t % self.page) for t in self._page_starts(first, num_tokens)
        ]
        sizes = np.diff([*self._page_starts(first, num_tokens), first + num_tokens]).tolist()
        yield from join_runs(zip(places, sizes, strict=True))

    def _page_starts(self, first: int, num_tokens: int) -> list[int]:
        inner = range((first // self.page + 1) * self.page, first + num_tokens, self.page)
        return [first, *inner] if num_tokens else []

    def _page_runs(self, pages: list[int], num_tokens: int) -> Iterator[Run]:
        sizes = [min(self.page, num_tokens - i * self.page) for i in range(len(pages))]
        yield from join_runs((p * self.page, n) for p, n in zip(pages, sizes, strict=True))


def join_runs(runs: Iterable[Run]) -> Iterator[Run]:
    """Join runs that lie next to one another."""
    last: Run | None = None
    for start, size in runs:
        if last is not None and last[0] + last[1] == start:
            last = (last[0], last[1] + size)
            continue
        if last is not None:
            yield last
        last = (start, size)
    if last is not None:
        yield last


class Spare:
    """Buffers beside the pool, for what does not lie together in it. They are kept and lent again, and counted once."""

    def __init__(self, dtype: torch.dtype, meter: Meter) -> None:
        self.dtype, self.meter = dtype, meter
        self.idle: list[Tensor] = []
        self.lent: dict[int, Tensor] = {}

    def take(self, num_elements: int) -> Tensor:
        """A 1-D tensor of that many elements: of the smallest idle buffer that holds them, or of a new one."""
        fitting = [i for i, buffer in enumerate(self.idle) if len(buffer) >= num_elements]
        if fitting:
            buffer = self.idle.pop(min(fitting, key=lambda i: len(self.idle[i])))
        else:
            buffer = torch.empty(1 << (num_elements - 1).bit_length(), dtype=self.dtype)
            self.meter.spill(buffer.numel() * buffer.itemsize)
        self.lent[buffer.data_ptr()] = buffer
        return buffer[:num_elements]

    def give(self, tensor: Tensor) -> None:
        """Take back what `take` lent."""
        self.idle.append(self.lent.pop(tensor.data_ptr()))


class SlotBuffer:
    """Stream slots: first-fit spans of a flat element buffer; what fragmentation keeps out lies in a spare buffer."""

    def __init__(self, capacity_bytes: int, dtype: torch.dtype, meter: Meter, spare: Spare) -> None:
        self.flat = torch.empty(capacity_bytes // dtype.itemsize, dtype=dtype)
        self.meter, self.spare = meter, spare
        self.free: list[Run] = [(0, len(self.flat))] if len(self.flat) else []

    def take(self, num_elements: int) -> tuple[Tensor, Run | None]:
        """A 1-D tensor of that many elements and the span to give back."""
        self.meter.take(num_elements * self.flat.itemsize)
        for i, (start, size) in enumerate(self.free):
            if size >= num_elements:
                self.free[i] = (start + num_elements, size - num_elements)
                return self.flat[start : start + num_elements], (start, num_elements)
        return self.spare.take(num_elements), None

    def give(self, tensor: Tensor, span: Run | None) -> None:
        """Give a span back."""
        self.meter.give(tensor.numel() * tensor.itemsize)
        if span is None:
            self.spare.give(tensor)
        else:
            self.free = list(join_runs(sorted([*(f for f in self.free if f[1]), span])))


class KvPool:
    """All KV memory of one node for one schedule; capacities come with the plan. Tests `fill` it with NaN first."""

    _living: ClassVar["weakref.WeakSet[KvPool]"] = weakref.WeakSet()

    def __init__(
        self, meta: ScheduleMeta, *, main_bytes: int, slot_bytes: int, dtype: torch.dtype, fill: float | None = None
    ) -> None:
        self.meter = Meter()
        cuts = meta.head_cuts
        self.groups: list[PagePool] = []
        for lo, hi in pairwise(cuts):
            page_bytes = meta.page_tokens * meta.kv_row_bytes(hi - lo) * meta.num_layers
            self.groups.append(PagePool(meta, hi - lo, -(-main_bytes // page_bytes), dtype, self.meter))
        self.spare = Spare(dtype, self.meter)
        self.slots = SlotBuffer(slot_bytes, dtype, self.meter, self.spare)
        if fill is not None:
            for group in self.groups:
                group.kv.fill_(fill)
            self.slots.flat.fill_(fill)
        KvPool._living.add(self)

    @classmethod
    def living_bytes(cls) -> int:
        """Bytes of memory of all pools in this process that have not been let go, used or not."""
        return sum(pool.capacity_bytes for pool in list(cls._living))

    @property
    def capacity_bytes(self) -> int:
        """Bytes of memory that this pool keeps, used or not."""
        return self.slots.flat.nbytes + sum(group.kv.nbytes for group in self.groups)

    @property
    def peak_bytes(self) -> int:
        """High-water mark of bytes in use."""
        return self.meter.peak_bytes

    @property
    def spilled_bytes(self) -> int:
        """Bytes of buffers beside the pool so far."""
        return self.meter.spilled_bytes

    @property
    def num_spills(self) -> int:
        """Buffers allocated beside the pool so far."""
        return self.meter.num_spills

    @property
    def in_use_bytes(self) -> int:
        """Bytes in use now."""
        return self.meter.in_use_bytes
