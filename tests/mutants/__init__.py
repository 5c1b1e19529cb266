"""Mutants: the protocol, broken in one place at a time, in a copy of the tree.

Each mutant names the tests that have to notice it. `make mutants` shows that they pass in an unchanged copy and fail in
the broken one, so a test that has stopped testing is found. What survives is a gap.
"""
