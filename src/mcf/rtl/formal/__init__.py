"""Formal checks: small configurations of the modules, in which a solver tries every input for some cycles.

`names()` lists them, `run(name)` runs one. Each claim stands beside mutants, designs with one fault, which must be
caught: a claim that nothing breaks says nothing. Mutants live here, never in the product.
"""

from mcf.rtl.formal.run import Result, names, run

__all__ = ["Result", "names", "run"]
