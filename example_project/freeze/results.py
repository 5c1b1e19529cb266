"""What is known at the end, and whether it is what it must be."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from .locks import CUSTOMERS, OURS, PLAIN


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the workers wrote with one of the locks: the customers of the invoices."""

    lock: str
    before: list[int]
    """By worker 1, before it was frozen."""
    taken_over: list[int]
    """By worker 2."""
    after: list[int]
    """By worker 1, after it woke."""
    loss: str
    """The text of the ``LeaseLost`` that worker 1 got; empty if it got none."""

    @property
    def all(self) -> list[int]:
        return self.before + self.taken_over + self.after

    @property
    def twice(self) -> list[int]:
        """The customers with more than one invoice."""
        return [customer for customer, count in Counter(self.all).items() if count > 1]


def table(results: Sequence[Result]) -> Iterator[str]:
    """A line for each figure, and a column for each lock."""
    customers = len(CUSTOMERS)
    yield _row("", [each.lock for each in results])
    yield _row("written by worker 1, before it was frozen", [len(each.before) for each in results])
    yield _row("written by worker 2, which took over", [len(each.taken_over) for each in results])
    yield _row("written by worker 1, after it woke", [len(each.after) for each in results])
    yield _row(f"invoices for {customers} customers", [len(each.all) for each in results])
    yield _row("customers with two invoices", [len(each.twice) for each in results])
    yield _row("how worker 1 ended", ["LeaseLost" if each.loss else "no error" for each in results])
    for each in results:
        if each.loss:
            yield from ["", *wrap(f"LeaseLost: {each.loss}", 78, initial_indent="  ", subsequent_indent="  ")]


def _row(title: str, cells: Sequence[object]) -> str:
    return f"  {title:41}" + "".join(f"{cell!s:>18}" for cell in cells)


def faults(results: Sequence[Result]) -> Iterator[str]:
    """A sentence for each thing that is not as it must be."""
    by_lock = {each.lock: each for each in results}
    if sorted(by_lock[OURS].all) != [*CUSTOMERS]:
        yield f"With {OURS}, not every customer has one invoice: {by_lock[OURS].all}"
    if not by_lock[OURS].loss:
        yield f"With {OURS}, worker 1 woke, and got no LeaseLost."
    if not by_lock[PLAIN].twice:
        yield f"With {PLAIN}, no customer has two invoices, so nothing was shown."
