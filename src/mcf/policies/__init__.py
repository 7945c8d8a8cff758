"""Policies: one file each. They choose; the result is a schedule, judged by `verify` and obeyed by executors."""

from mcf.policies.registry import BY_BYTES, NAMES, check_name, least_budget, plan
from mcf.policies.request import PlanRequest

__all__ = ["BY_BYTES", "NAMES", "PlanRequest", "check_name", "least_budget", "plan"]
