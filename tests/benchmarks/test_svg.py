from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.svg import Chart, ticks_between, ticks_up_to

if TYPE_CHECKING:
    from pathlib import Path


def test_a_chart_is_well_formed_whatever_its_texts(tmp_path: Path) -> None:
    chart = Chart("Fast & <slow>", (0.1, 10), (0, 20), is_log=True)
    chart.x_axis("times", {0.1: "0.1", 1: "run cycle, portable"})
    chart.y_axis(ticks_up_to(20))
    chart.line([(0.1, 0), (10, 20)], "#0969da", "6 4")
    chart.legend("cycle's cost", "#0969da")
    chart.save(tmp_path / "chart.svg")
    texts = [element.text for element in ET.parse(tmp_path / "chart.svg").iter() if element.tag.endswith("text")]
    assert texts[0] == "Fast & <slow>"
    assert {"run cycle", "portable", "cycle's cost"} <= set(texts)


@pytest.mark.parametrize(("highest", "texts"), [(17, "0 5 10 15 20"), (1.5, "0 0.5 1 1.5"), (100, "0 20 40 60 80 100")])
def test_ticks_are_round_and_reach_the_highest_value(highest: float, texts: str) -> None:
    assert " ".join(ticks_up_to(highest).values()) == texts


@pytest.mark.parametrize(
    ("lowest", "highest", "texts"),
    [(1, 300, "1 10 100 1 000"), (0.95, 9, "1 2 5 10"), (0.02, 1, "0.02 0.05 0.1 0.2 0.5 1"), (1, 1, "1 2")],
)
def test_ticks_of_a_logarithmic_axis_reach_both_values(lowest: float, highest: float, texts: str) -> None:
    assert " ".join(ticks_between(lowest, highest).values()) == texts
