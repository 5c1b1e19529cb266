"""An ordinary run stays short enough to be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests import road

if TYPE_CHECKING:
    from pathlib import Path

# Others go the same way, but for the SQL.
pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.django_db(transaction=True)]


class Limits(NamedTuple):
    functions: int
    files: int
    depth: int


#: They may only shrink. `python -m tests.road` prints what there is. Some functions are entered only if the thread of
#: the heartbeats gets its turn while the job runs.
LIMITS = {"command": Limits(395, 56, 15), "in process": Limits(178, 30, 11)}


@pytest.mark.parametrize("way", road.WAYS)
def test_it_gets_no_longer(way: str, tmp_path: Path, child_env: dict[str, str]) -> None:
    found = road.measured(way, tmp_path, child_env)
    reached = Limits(found.functions, found.files, found.depth)
    assert all(have <= may for have, may in zip(reached, LIMITS[way], strict=True)), str(found)
    assert found.stack
