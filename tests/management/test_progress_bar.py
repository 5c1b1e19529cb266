"""What the bar at a terminal looks like. How it is drawn is tested at one, see `tests/processes/test_terminals`."""

from __future__ import annotations

import pytest

from django_singlejob.management.progress_bar import drawing, width_of
from django_singlejob.process.progress import Progress


@pytest.mark.parametrize(
    ("progress", "width", "expected"),
    [
        (Progress(120, 500, "importing"), 60, "120 of 500, importing [####----------------]  24 %"),
        (Progress(0, 5), 60, "0 of 5 [--------------------]   0 %"),
        (Progress(7, 5), 60, "7 of 5 [####################] 100 %"),
        (Progress(120, text="importing"), 60, "120, importing"),
        (Progress(0, 0), 60, "0 of 0"),
        (Progress(), 60, ""),
        (Progress(output="row 3"), 60, ""),
        (Progress(120, 500, "importing" * 8), 60, "120 of 500, importingimporti... [####----------------]  24 %"),
        (Progress(120, 500, "importing"), 40, "[####----------------]  24 %"),
        (Progress(120, text="importing" * 8), 30, "120, importingimportingimpo..."),
        (Progress(120_000_000, text="importing"), 18, ""),
        (Progress(120, 500, "importing"), 28, "[####----------------]  24 %"),
        (Progress(120, 500, "importing"), 27, "120 of 500, importing 24 %"),
        (Progress(120, 500, "importing"), 25, "24 %"),
        (Progress(120, 500, "importing"), 4, "24 %"),
        (Progress(120, 500, "importing"), 3, ""),
    ],
)
def test_it_fits_the_width(progress: Progress, width: int, expected: str) -> None:
    drawn = drawing(progress.in_words, progress, width)
    assert drawn == expected
    assert width_of(drawn) <= width


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert width_of("夜間") == 4
    assert width_of("e\N{COMBINING ACUTE ACCENT}") == 1
    assert drawing("夜" * 80, Progress(1, 2), 57) == "夜" * 12 + "... [##########----------]  50 %"
