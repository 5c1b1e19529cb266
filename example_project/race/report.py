"""The paper's tables, with our figures beside the paper's. Each function yields lines of at most 80 columns."""

import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .paper import SERVERS, paper_rounds
from .results import Round

SHOWN = 5
BAR_WIDTH = 20
BLOCK = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"


def winners(rounds: Sequence[Round]) -> Iterator[str]:
    """The paper's Table 1, shortened to the first and the last rounds."""
    paper = dict(enumerate(paper_rounds(), 1))
    yield "  round   here                     the paper"
    for each in rounds:
        if each.number <= SHOWN or each.number > len(rounds) - SHOWN:
            ours = [_cell(server, win.lock_cost) for server, win in each.wins.items()]
            theirs = _cell(*paper[each.number]) if each.number in paper else ""
            yield f"  {each.number:5}   {' and '.join(ours) or 'nobody':22}   {theirs}".rstrip()
        elif each.number == SHOWN + 1:
            yield "    ..."


def _cell(server: str, lock_cost: float) -> str:
    return f"{server:10} {_ms(lock_cost)}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:8.1f} ms"


def wins_per_server(rounds: Sequence[Round]) -> Iterator[str]:
    """The paper's Table 2. The bars are shares of all rounds, so that races of any length can be compared."""
    paper = paper_rounds()
    ours = Counter(server for each in rounds for server in each.wins)
    theirs = Counter(each.winner for each in paper)
    servers = dict.fromkeys([answer.server for answer in rounds[0].answers] + SERVERS)
    most = max(max(ours.values(), default=1) / len(rounds), max(theirs.values()) / len(paper))
    yield f"  {'server':9}    {'here':28}  the paper"
    for server in servers:
        mine = _bar(ours[server], len(rounds), most)
        yield f"  {server:9}  {mine:28}  {_bar(theirs[server], len(paper), most)}".rstrip()


def _bar(wins: int, rounds: int, most: float) -> str:
    return f"{wins:4}  {BLOCK * round(BAR_WIDTH * wins / rounds / most)}"


def lock_costs(rounds: Sequence[Round]) -> Iterator[str]:
    """How long the winners waited."""
    ours = _summary([win.lock_cost for each in rounds for win in each.wins.values()] or [math.nan])
    theirs = _summary([each.lock_cost for each in paper_rounds()])
    yield "                  here      the paper   paper / here"
    for name, value in ours.items():
        yield f"  {name:8} {_ms(value)}    {_ms(theirs[name])}   {theirs[name] / value:12.1f}"
    yield ""
    yield "  The paper's figures come from another machine: this is not a benchmark."


def _summary(costs: Sequence[float]) -> Mapping[str, float]:
    ordered = sorted(costs)
    return {
        "mean": statistics.mean(ordered),
        "median": statistics.median(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "p90": ordered[math.ceil(0.9 * len(ordered)) - 1],
    }


def refusals(rounds: Sequence[Round]) -> Iterator[str]:
    """What happened to the others."""
    counts = Counter(refusal for each in rounds for refusal in each.refusals)
    yield f"  {counts.total()} times a server lost: {counts.pop('held', 0)} times the lock was held."
    if late := counts.pop("already_ran", 0):
        yield f"  {late} times the job had already run when it asked (min_interval);"
        yield "  with a lock alone, some of these would have run the job once more."
    for reason, count in counts.items():
        yield f"  {count} times the reason was {reason!r}."


def next_steps(manage: str) -> str:
    """What to try after a race; ``manage`` is how the reader calls manage.py."""
    return f"""\
  {manage} seed
  {manage} run_singleton sales_report --now
      One of the shop's jobs; --list shows all. Without --now it runs only
      when a slot of its schedule is due.

  {manage} run_singleton import_catalogue --now
      Takes 20 seconds. Meanwhile, the same command in a second terminal is
      skipped: "held by somebody else". Kill the first command with kill -9,
      and run the second one again with --wait 60: it takes over some seconds
      after the lease of 12 seconds has expired.

  make freeze
      A worker that is frozen and wakes too late, with a plain lock and with
      ours.

  make serve
      The admin, with a user, a password and a history to look at.

  DATABASE_URL=postgres://user:password@127.0.0.1:5432/name make demo
      The same race on PostgreSQL; mysql://... works too."""
