"""The compute-NIC's datapath: hardware in Amaranth, golden models, builds, and the executor that runs schedules on it.

`hdl` holds the modules, `golden` a plain Python model of each, `build` drives the tools. The modules need the extra
`rtl`; importing this package does not.
"""
