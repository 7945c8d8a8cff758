"""Golden models: what each module must do, in plain Python and numpy, without clocks."""
