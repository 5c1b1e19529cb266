"""Deterministic simulation: a few processes run the real code, and one scheduler decides everything else.

A *schedule* is one simulated history: two to four processes, a scenario that says what they do, and a seed that decides
the rest. Each process has threads, called *strands* here because only one of them runs at a time: the one that has the
*baton*. A strand passes it on at every statement, COMMIT, ROLLBACK, connect, sleep and wait. So the seed decides who
goes next, who is stopped, who dies, whose connection is cut, and how the clocks run; the same seed gives the same
history, byte for byte.

With ``--database postgresql`` or ``mysql``, the statements are carried out by that server, and wait for each other's
row locks there; see ``backend.server``.

An *oracle* outside the product judges each history. If it finds a violation, the schedule is made as small as possible
and printed. Run ``make simulate``, or ``python -m tests.simulation --help``.
"""
