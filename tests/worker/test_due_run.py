from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from django_singlejob import Outcome
from django_singlejob.worker.due_run import Inline

if TYPE_CHECKING:
    pass


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [None, Stop()], ids=["it returned", "it raised"])
def test_nor_does_a_forked_child_that_comes_back_with_a_report_go_on(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    """A task's child does, because what it raises is already in its outcome."""

    class Fork:
        name = "forks"

        def __call__(self) -> Outcome:
            monkeypatch.setattr(os, "getpid", lambda: 0)
            return Outcome(status="failed", value=None, name=self.name, error=error)

    with pytest.raises(type(error) if error else SystemExit):
        Inline().send(Fork())
