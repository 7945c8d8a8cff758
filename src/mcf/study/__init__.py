"""Studies: policies, the simulator and the bounds put together, into rows, the paper's items, and pages."""

from mcf.study.items import FLAGS, Item
from mcf.study.lab import Case, Lab, Outcome, Row
from mcf.study.study import Study

__all__ = ["FLAGS", "Case", "Item", "Lab", "Outcome", "Row", "Study"]
