"""The processor of a node in a simulated mesh: it runs the driver's programs, one by one, on the AXI4-Lite port."""

from collections import deque
from collections.abc import Generator
from typing import Any, TypeVar

from mcf.rtl.driver import Program, Read, Rings, Wait, Write
from mcf.rtl.mesh.library import Mesh

T = TypeVar("T")


class Cpu:
    """Programs run in the order in which they came; `go_on` gets as far as it can without time going by.

    With no program at work, an interrupt is answered by reading the completions, which `rings.completed` keeps.
    """

    def __init__(self, instances: Mesh, core: int) -> None:
        self.instances, self.core, self.rings = instances, core, Rings()
        self.port = instances.axi(core)
        self.programs: deque[tuple[Program[Any], list[Any]]] = deque()
        self.life = self._live()
        self.wants: Read | Wait | None = None  # None: nothing to do
        next(self.life)

    @property
    def is_busy(self) -> bool:
        """Say whether a program has not ended, or an access is under way."""
        return self.wants is not None or bool(self.programs) or self.instances.pending_accesses(self.port) > 0

    @property
    def is_interrupted(self) -> bool:
        """Say whether the node interrupts."""
        return bool(self.instances.peek(self.core, "interrupt"))

    def start(self, program: Program[T]) -> list[T]:
        """Queue a program; the list gets its result when it has ended."""
        result: list[T] = []
        self.programs.append((program, result))
        return result

    def go_on(self) -> None:
        """Queue the accesses that the programs make next, up to a read or a wait. Raises RunError as programs do."""
        answers = self.instances.take_answers(self.port)
        if not (answers or self._can_go_on()):
            return
        accesses: list[tuple[int, int, int]] = []
        request = self.life.send(answers[0] if answers else 0)
        while isinstance(request, Write):
            accesses.append((1, request.address, request.word))
            request = self.life.send(0)
        if isinstance(request, Read):
            accesses.append((0, request.address, 0))
        self.wants = request
        self.instances.put_accesses(self.port, accesses)

    def _can_go_on(self) -> bool:
        if isinstance(self.wants, Read):
            return False
        return self.is_interrupted or (self.wants is None and bool(self.programs))

    def _live(self) -> Generator[Read | Write | Wait | None, int, None]:
        """Yields None where there is nothing to do."""
        yield None
        while True:
            if self.programs:
                program, result = self.programs.popleft()
                result.append((yield from program))
            elif self.is_interrupted:
                self.rings.completed += yield from self.rings.completions()
            else:
                yield None
