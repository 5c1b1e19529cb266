"""Fault injection: servers race for a few locks while two faults at a time disturb them; then their history is judged.

`python -m tests.chaos --seconds 60 --servers 6 --seed 1` uses the database in DATABASE_URL (default: an SQLite file).
`server` and `jobs` are what the processes do, `onlooker` asks their leases, `nemesis` has the faults, and `judge` knows
what must hold all the same.
"""

from datetime import timedelta

LEASE = timedelta(seconds=1.2)
# How often the job with a schedule is due, in seconds.
EVERY = 2
