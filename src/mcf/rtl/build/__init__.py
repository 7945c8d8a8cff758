"""Drivers of the tools that turn the modules into other things: a library that simulates, Verilog, numbers."""
