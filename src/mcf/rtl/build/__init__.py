"""Drivers of the tools: Verilog, resource counts, logic levels, place and route."""
