"""Measurements that can be repeated: time to first token and time per token against their bounds, and what was where."""
