"""Measurements, not tests: `python -m tests.benchmarks` prints tables, of ratios in one run rather than bare times."""
