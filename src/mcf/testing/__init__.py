"""Shipped checks: policies, executors and topologies of your own are judged as ours are; oracles, toys and strategies.

The strategies (`schedules`, `broken_schedules`, `recipes`) need hypothesis and are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcf.testing.drawing import random_schedule
from mcf.testing.executors import check_executor
from mcf.testing.expect import CheckFailed
from mcf.testing.mutations import MUTATIONS, break_schedule
from mcf.testing.oracle import dense_attention, random_qkv
from mcf.testing.policies import check_policy, check_schedule
from mcf.testing.recipe import Recipe
from mcf.testing.topologies import check_topology
from mcf.testing.toys import make_toy_gguf, make_toy_model, make_toy_tokenizer, reference_generate

if TYPE_CHECKING:
    from mcf.testing.strategies import broken_schedules, recipes, schedules

__all__ = [
    "MUTATIONS",
    "CheckFailed",
    "Recipe",
    "break_schedule",
    "broken_schedules",
    "check_executor",
    "check_policy",
    "check_schedule",
    "check_topology",
    "dense_attention",
    "make_toy_gguf",
    "make_toy_model",
    "make_toy_tokenizer",
    "random_qkv",
    "random_schedule",
    "recipes",
    "reference_generate",
    "schedules",
]
_LAZY = ("broken_schedules", "recipes", "schedules")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module("mcf.testing.strategies"), name)
    raise AttributeError(f"module 'mcf.testing' has no attribute {name!r}")
