"""The simulator: a verified schedule in model time, and the bounds that no schedule beats. It obeys, and times."""

from mcf.sim.bounds import Bounds, bounds
from mcf.sim.decode import TokenParts, decode_s, token_parts
from mcf.sim.network import LinkChange
from mcf.sim.pipeline import PipelineResult, pipeline
from mcf.sim.profile import NAMES, Profile, load_profile
from mcf.sim.rates import rates_of
from mcf.sim.result import SimResult
from mcf.sim.simulate import simulate

__all__ = [
    "NAMES",
    "Bounds",
    "LinkChange",
    "PipelineResult",
    "Profile",
    "SimResult",
    "TokenParts",
    "bounds",
    "decode_s",
    "load_profile",
    "pipeline",
    "rates_of",
    "simulate",
    "token_parts",
]
