"""The paper's own figures: Lu 2025, "A Simple Way to Run One Copy of a Job on Many Servers", Table 1."""

import csv
from pathlib import Path
from typing import NamedTuple

DOI = "10.38124/ijisrt/25nov415"
SERVERS = [f"Server_{number}" for number in range(10)]
TABLE = Path(__file__).with_name("paper.csv")


class PaperRound(NamedTuple):
    winner: str
    lock_cost: float


def paper_rounds() -> list[PaperRound]:
    """The paper's 100 rounds, in their order. The lock cost is in seconds."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return [PaperRound(row["server"], float(row["acquire_seconds"])) for row in rows]
