"""Two models in Promela, which spin checks exhaustively: ``protocol.pml`` of the lock, ``runs.pml`` of one run.

Each says what is left out. ``python -m tests.model`` checks all forms, and ``--short`` those that the tests use.
"""
