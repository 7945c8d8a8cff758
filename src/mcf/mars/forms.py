"""Closed forms by the names of policies: what each moves and holds, from token arithmetic alone. No schedule is built.

Bytes and peaks equal what `verify` reports of the real schedule (tests, over random shapes), where nodes have direct
links and no budget forces a choice. Where nodes relay, traffic is exact too, and peaks of those that fetch are a bound.
"""

from collections.abc import Callable

from mcf.mars.form import Form
from mcf.mars.forms_apart import pd, pipeline
from mcf.mars.forms_kv import full, gather, one_shot, ring, zigzag
from mcf.mars.forms_nested import mars
from mcf.mars.forms_paper import mars_paper
from mcf.mars.forms_routed import pass_q, ulysses
from mcf.mars.job import Job

FORMS: dict[str, Callable[[Job], Form]] = {
    "ring": ring,
    "zigzag": zigzag,
    "gather": gather,
    "one-shot": one_shot,
    "full": full,
    "pass-q": pass_q,
    "ulysses": ulysses,
    "pd": pd,
    "mars-paper": mars_paper,
    "mars": mars,
}

REFERENCES: dict[str, Callable[[Job], Form]] = {"pipeline": pipeline}  # what no schedule of ours does
