"""Each cell of the comparison has a source, and the date of that source."""

from __future__ import annotations

import re

from tests.children import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
# One or more claims, each with its source at the end. The hyphen in a date does not break the line.
CELL = re.compile(r"(?:[^\[\]]+, \[20\d\d\u2011\d\d\](?:\[[\w-]+\]|\([\w/]+\.md\)))+")


def test_each_cell_has_a_source_and_a_date() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("|**")]
    assert len(rows) == 27
    assert [cell for row in rows for cell in row[1:] if not CELL.fullmatch(cell)] == []


def test_each_source_is_used_and_each_link_has_one() -> None:
    sources = re.findall(r"^\[([\w-]+)\]: https://\S+$", PAGE, re.MULTILINE)
    assert sorted(sources) == sorted(set(re.findall(r"\]\[([\w-]+)\]", PAGE)))
