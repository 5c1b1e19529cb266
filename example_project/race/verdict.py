"""What must be true after a race. Each function yields a sentence for each fault that it finds."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

from .results import Round


def faults(rounds: Sequence[Round], history: Sequence[int]) -> list[str]:
    return list(chain(failures(rounds), wrong_winners(rounds), overlaps(rounds), wrong_history(rounds, history)))


def failures(rounds: Sequence[Round]) -> Iterator[str]:
    """A server that loses has not failed, so no call may raise an exception."""
    for each in rounds:
        for answer in each.answers:
            if answer.error:
                yield f"Round {each.number}: {answer.server} failed, {answer.error}"


def wrong_winners(rounds: Sequence[Round]) -> Iterator[str]:
    """Each round has exactly one winner."""
    for each in rounds:
        if not each.wins:
            reasons = ", ".join(sorted(set(each.refusals))) or "everybody failed"
            yield f"Round {each.number} had no winner: {reasons}."
        elif len(each.wins) > 1:
            yield f"Round {each.number} had {len(each.wins)} winners: {', '.join(each.wins)}."


def overlaps(rounds: Sequence[Round]) -> Iterator[str]:
    """No two servers are ever inside the job together, in any round."""
    visits = [(win.visit, f"{server} (round {each.number})") for each in rounds for server, win in each.wins.items()]
    for (earlier, first), (later, second) in pairwise(sorted(visits)):
        if later.entered_at < earlier.left_at:
            together = 1000 * (min(earlier.left_at, later.left_at) - later.entered_at)
            yield f"{first} and {second} were inside the job together for {together:.1f} ms."


def wrong_history(rounds: Sequence[Round], history: Sequence[int]) -> Iterator[str]:
    """The history has each win once, and nothing else."""
    won = Counter(win.run for each in rounds for win in each.wins.values())
    recorded = Counter(history)
    if won != recorded:
        yield (
            f"Wins: {won.total()}, runs in the history: {recorded.total()} "
            f"({(won - recorded).total()} missing, {(recorded - won).total()} without a win)."
        )
