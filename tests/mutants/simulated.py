"""Simulates schedules in a copy: `python -m tests.mutants.simulated SCENARIO PROFILE SCHEDULES SEED`

Prints the first violation as JSON: its seed and a sentence; or `null` if there is none.
"""

from __future__ import annotations

import json
import sys

import django

django.setup()

from tests.simulation.campaign import Task, carried_out  # noqa: E402


def main(scenario: str, profile: str, schedules: str, seed: str) -> None:
    task = Task(seed=int(seed), scenario=scenario, profile=profile, schedules=int(schedules), seconds=float("inf"))
    violations = carried_out(task).violations
    print(json.dumps([violations[0][0].seed, violations[0][1]] if violations else None))


if __name__ == "__main__":
    main(*sys.argv[1:])
