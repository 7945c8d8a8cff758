"""Four readers and a writer, compiled, on the fast memory model."""

from typing import Any

import numpy as np

from dma_ports import DmaPorts
from dma_work import NUM_READERS, Work
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.mesh.library import Mesh


class Run:
    """Ports that obey work until nothing moves any more."""

    def __init__(self, work: Work, timing: DdrTiming, *, stall: float = 0.0) -> None:
        with Mesh() as mesh:
            ports = mesh.instance(compile_module(DmaPorts(), name="dma_ports"))
            axi = [(ports, f"reads__{i}") for i in range(NUM_READERS)] + [(ports, "write")]
            self.ddr = mesh.ddr(axi, timing)
            self.ddr.write(0, work.image[: timing.size_bytes])
            sinks = [mesh.sink((ports, f"beats__{i}"), stall=stall) for i in range(NUM_READERS)]
            done = mesh.sink((ports, "done"))
            for i, requests in enumerate(work.fetches):
                mesh.push(mesh.source((ports, f"fetch__{i}")), words_of(requests))
            mesh.push(mesh.source((ports, "put")), words_of(work.puts))
            words = b"".join(word.to_bytes(16, "little") for word in work.words)
            mesh.push(mesh.source((ports, "words")), np.frombuffer(words, "<u4").reshape(-1, 4))
            self.stop = mesh.run(100_000)
            self.taken = [mesh.take(sink, 4) for sink in sinks]
            self.done, self.done_words = mesh.take(done, 1)
            self.counts = [self.ddr.counts(port) for port in range(NUM_READERS + 1)]
            self.image = self.ddr.read(0, min(len(work.image), timing.size_bytes))

    @property
    def cycles(self) -> int:
        """Up to the last beat or answer."""
        return 1 + int(max([*self.done, *(cycles[-1] for cycles, _ in self.taken if len(cycles))]))

    def beats(self, port: int) -> list[int]:
        return [int.from_bytes(row.tobytes(), "little") for row in self.taken[port][1]]


def words_of(requests: Any) -> Any:
    values = [address | beats << 40 for address, beats in requests]
    return np.frombuffer(b"".join(value.to_bytes(8, "little") for value in values), "<u4").reshape(-1, 2)
