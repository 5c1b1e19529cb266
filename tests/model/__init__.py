"""The protocol as a model in Promela, which spin checks exhaustively: ``protocol.pml`` says what is left out.

``python -m tests.model`` checks it in full, and ``--short`` in the form that the tests use.
"""
