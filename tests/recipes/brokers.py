"""Other queues, within the process of a test: a plugin that tests name in `pytest_plugins`. No other test sees them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import celery
import pytest
from celery import _state

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def eager_celery(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Celery runs tasks as soon as they are sent."""
    monkeypatch.setitem(vars(_state), "_on_app_finalizers", {*_state._on_app_finalizers})  # the shared tasks
    monkeypatch.setattr(sys, "path", [*sys.path])  # Celery adds the folder that it is in
    app = celery.Celery("shop", broker="memory://", set_as_current=False)
    monkeypatch.setattr(_state._tls, "current_app", app)
    app.conf.task_always_eager = True
    yield
    app.close()
