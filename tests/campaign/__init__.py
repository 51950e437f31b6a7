"""Attacks on the package that are too long for the tests; each module runs with `python -m`."""
