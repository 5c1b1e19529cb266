"""Clusters of database servers, which the tests start on free ports, and what a witness outside them sees.

`python -m tests.clusters --seconds 30 --seed 1 [SCENARIO ...]` plays scenarios one after the other, and prints a table
of the figures. `settings`, `jobs`, `server` and `cron` are the application's processes, `stage` starts and ends them,
and `witness` counts what they noted in a file. Each kind of cluster has two modules: its servers (`postgres`,
`galera`), and what may happen to them (`postgres_scenarios`, `galera_scenarios`).
"""

from datetime import timedelta

LEASE = timedelta(seconds=3)
# How often the job with a schedule is due, in seconds.
EVERY = 1
