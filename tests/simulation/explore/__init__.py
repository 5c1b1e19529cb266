"""Exhaustive simulation: all the schedules of two processes and one fault, with equivalent ones left out.

The search runs the real code from the beginning for each schedule. It decides what the seed decides elsewhere: who goes
next at each step, and where the fault happens. Two rules make that finite:

* A step takes no time. Time passes only when nothing can go on, and during a fault. All clocks are right.
* A schedule that reaches a *state* that was reached before is given up: whatever follows is known. The state is what
  is committed in the database, what each process has seen until now (so its memory, since the code is deterministic),
  what each strand waits for, and what the oracle remembers. Orders of steps that do not affect each other lead to the
  same state, and so do many that do.

Schedules with fewer preemptions come first, so each state is first reached with as few as possible. A preemption is a
switch to another strand while the present one can go on. So when the search ends, or says "complete with 2
preemptions", each schedule within that bound was carried out, or is known to continue like one that was.
"""
