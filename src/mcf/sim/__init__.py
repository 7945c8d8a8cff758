"""The simulator: a verified schedule in model time, and the bounds that no schedule beats. It obeys, and times."""

from mcf.sim.bounds import Bounds, bounds
from mcf.sim.profile import NAMES, Profile, load_profile
from mcf.sim.result import SimResult
from mcf.sim.simulate import simulate

__all__ = ["NAMES", "Bounds", "Profile", "SimResult", "bounds", "load_profile", "simulate"]
