"""Measurements that can be repeated: times to the first and to the next token, against what no run can beat."""
