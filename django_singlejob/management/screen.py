"""One screen of ``singleton_status``: the worst first, and what is well summed up."""

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap

from django_singlejob.management.tables import distance, printable, table
from django_singlejob.monitoring.findings import roughly
from django_singlejob.monitoring.health import Health
from django_singlejob.monitoring.verdict import Verdict
from django_singlejob.process.escaping import listed

LINES, WIDTH = 45, 100
# No cell is wider.
CELL = 34
# The most lines of the summary, and of what needs attention.
SUMMARY, FINDINGS = 4, 12
MORE = "singleton_status JOB shows one of them, --format json all."


def on_one_screen(verdict: Verdict, full: Sequence[str]) -> Sequence[str]:
    """``full``, the lines of all, if they fit; or else, of each job no more than a line, and of most only how many."""
    return full if sum(max(1, -(-len(line) // WIDTH)) for line in full) <= LINES else _short(verdict, full[0])


def _short(verdict: Verdict, summary: str) -> list[str]:
    troubles = [_cut(f"{each.level.name}: {each.what_happened}") for each in verdict.findings]
    head, below = [*wrap(summary, WIDTH)[:SUMMARY], ""], ["", *_bounded(troubles, FINDINGS)]
    jobs = sorted(verdict.healths, key=lambda health: (-health.state.level, health.lock is None, health.name))
    # Of the table, an empty line and its titles; below it, how many are left out, and the servers.
    room = LINES - len(head) - len(below) - 4
    lines = table(("JOB", "STATE", "NOW, OR LAST RUN", "NEXT SLOT"), map(_row, jobs[:room]))[1:]
    return [*head, *map(_cut, lines), *_left_out(jobs[room:]), _around(verdict), *(below if troubles else [])]


def _bounded(lines: Sequence[str], most: int) -> list[str]:
    return [*lines] if len(lines) <= most else [*lines[: most - 1], f"... and {len(lines) - most + 1} more. {MORE}"]


def _left_out(jobs: Sequence[Health]) -> list[str]:
    counts = Counter(str(health.state.label) for health in jobs)
    return [_cut(f"... and {listed(f'{n} {label}' for label, n in counts.items())}. {MORE}")] if jobs else []


def _around(verdict: Verdict) -> str:
    due, alive = sum(queue.due for queue in verdict.queues), sum(worker.is_live for worker in verdict.workers)
    return f"Queues: {len(verdict.queues)} ({due} due). Workers alive: {alive}. Servers: {len(verdict.servers)}."


def _row(health: Health) -> tuple[str, ...]:
    status, lock = health.status, health.lock
    last = f"{status.last_status} {distance(status.now, status.last_finished_at)}".strip() if status else ""
    now = f"{lock.holder} for {roughly(lock.now - lock.acquired_at)}" if lock else last
    cells = (health.name, str(health.state.label), now, distance(status.now, status.next_slot) if status else "")
    return tuple(_cut(cell, CELL) for cell in cells)


def _cut(text: str, width: int = WIDTH) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: width - 3]}..."
