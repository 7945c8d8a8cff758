"""The composition root: names become objects, and a request becomes a plan, a run and a result."""
