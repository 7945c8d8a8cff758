"""Policies of other packages: found by entry point, and judged before anything looks at their schedules."""

from collections.abc import Callable
from dataclasses import replace

from mcf.cluster import plugins
from mcf.errors import LawError, McfError, PlugInError, ScheduleError
from mcf.policies.request import PlanRequest
from mcf.schedule import Schedule, verify

GROUP = "mcf.policies"
Policy = Callable[[PlanRequest], Schedule]
_AS_ASKED = ("num_nodes", "prompt_tokens", "num_layers", "num_q_heads", "num_kv_heads", "head_dim", "topology")


def names() -> tuple[str, ...]:
    """Names that installed packages offer."""
    return plugins.names(GROUP)


def find(name: str) -> Policy | None:
    """The policy of that name in some installed package, or None.

    What it plans has passed `verify`, budgets apart. Raises PlugInError, with its name, when it cannot be loaded,
    fails, or returns something else than a schedule of the request; LawError with its name, the law and the grid.
    """
    plan = plugins.find(GROUP, "policy", name)
    return None if plan is None else lambda request: _judged(name, plan, request)


def _judged(name: str, plan: Policy, request: PlanRequest) -> Schedule:
    try:
        sched: object = plan(request)
    except ScheduleError as error:
        raise PlugInError(f"policy plug-in {name!r} cannot build its schedule: {error}") from error
    except McfError:
        raise  # a refusal: too little memory, too few nodes
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        raise PlugInError(
            f"policy plug-in {name!r} failed ({type(error).__name__}: {first}): repair it, or run again with --debug"
        ) from error
    if not isinstance(sched, Schedule):
        raise PlugInError(f"policy plug-in {name!r} returned {type(sched).__name__}: expected a Schedule")
    asked = request.meta(name)
    for key in _AS_ASKED:
        if getattr(sched.meta, key) != getattr(asked, key):
            got, expected = getattr(sched.meta, key), getattr(asked, key)
            raise PlugInError(f"policy plug-in {name!r} planned {key} = {got!r}: expected {expected!r}, as asked")
    try:
        verify(sched.replace(meta=replace(sched.meta, budgets=())))
    except LawError as error:
        raise LawError(error.law, f"policy plug-in {name!r}: {error.what}", row=error.row, grid=error.grid) from None
    except ScheduleError as error:
        raise PlugInError(f"policy plug-in {name!r} built no whole schedule: {error}") from None
    return sched
