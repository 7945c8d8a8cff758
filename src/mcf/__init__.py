"""MCF: long prompts on several small machines, by context parallelism with scheduled KV placement.

The public names below are imported when first used: `import mcf` itself needs nothing but the standard library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcf.engine.llm import LLM, load
    from mcf.engine.planner import Plan, make_plan
    from mcf.engine.result import Result
    from mcf.errors import McfError, RequestCancelledError, RequestTimeoutError, RunError, UserError
    from mcf.schedule import Report, Schedule, verify
    from mcf.trace import Trace

__version__ = "0.1.0"

_HOMES = {
    "LLM": "mcf.engine.llm",
    "McfError": "mcf.errors",
    "Plan": "mcf.engine.planner",
    "Report": "mcf.schedule",
    "RequestCancelledError": "mcf.errors",
    "RequestTimeoutError": "mcf.errors",
    "Result": "mcf.engine.result",
    "RunError": "mcf.errors",
    "Schedule": "mcf.schedule",
    "Trace": "mcf.trace",
    "UserError": "mcf.errors",
    "load": "mcf.engine.llm",
    "make_plan": "mcf.engine.planner",
    "verify": "mcf.schedule",
}

__all__ = [
    "LLM",
    "McfError",
    "Plan",
    "Report",
    "RequestCancelledError",
    "RequestTimeoutError",
    "Result",
    "RunError",
    "Schedule",
    "Trace",
    "UserError",
    "load",
    "make_plan",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mcf' has no attribute {name!r}: public names are {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
