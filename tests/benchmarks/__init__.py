"""Measurements, not tests: `python -m tests.benchmarks` prints tables of ratios within one run, not of bare times."""
