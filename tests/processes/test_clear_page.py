"""Locks that are cleared in the admin while their holders resume."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from django_singlejob import LockHeld, job_lock
from django_singlejob.models.locks import locks
from tests.admin.pages import Page, clear_page, messages_of, shown
from tests.app.jobs import SHORT_LEASE, add_one
from tests.app.models import Counter
from tests.processes.witness import ends
from tests.waiting import eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from django.test import Client

    from tests.processes.conftest import Call

pytest_plugins = "tests.admin.people"
pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

NAME = "counts_and_stops_once"
# A lease and two intervals, which are a third of it each, with a little more.
WATCH = 2 * SHORT_LEASE.total_seconds()


@pytest.mark.parametrize("moment", ["before the click", "during the click", "after the click"])
def test_a_holder_that_resumes_never_counts_beside_another(
    call: Call, admin_client: Client, go: Path, moment: str
) -> None:
    zombie = call(f"{NAME}()")
    zombie.wait_for("stopping")
    eventually(locks().stale().exists)
    page = seen(admin_client)
    work_for(WATCH)

    resume = partial(zombie.send_signal, signal.SIGCONT)
    if moment == "before the click":
        resume()
        click(admin_client, page)
    elif moment == "during the click":
        with ThreadPoolExecutor() as pool:
            resumed = pool.submit(resume)
            click(admin_client, page)
            resumed.result()
    else:
        (answer,) = click(admin_client, page)
        assert answer.startswith(f"The lock {NAME} was cleared")

    try:
        count(then=resume if moment == "after the click" else None)
    except LockHeld:
        # It renewed its lease in its next transaction, before its own threads and the click noticed anything. So nobody
        # cleared it: it is alive, and goes on.
        assert moment != "after the click"
        go.touch()
        assert zombie.finish() == 0
        count()
    else:
        go.touch()
        assert zombie.finish() == 0
        assert "raised LeaseLost" in zombie.output
    (status,) = ends(NAME)
    if "raised LeaseLost" in zombie.output:
        assert status in ["abandoned", "failed", "interrupted"]
    else:
        assert "returned" in zombie.output
        assert status == "successful"
    assert Counter.objects.get(name="sum").value == 20 + zombie.output.count("counted")


def count(then: Callable[[], object] | None = None) -> None:
    """Count to twenty as the holder's successor."""
    with job_lock(NAME, wait=3 * SHORT_LEASE) as successor:
        if then:
            then()
        for _ in range(20):
            with successor.atomic():
                add_one("sum")


def seen(client: Client) -> list[str]:
    """What the page that asks whether to clear the lock sends."""
    return Page(shown(client, clear_page(NAME))).fields["lock"]


def click(client: Client, chosen: list[str]) -> list[str]:
    """Click. Returns the messages to the user. Fails if the request sleeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", fail)
        sent = {"lock": chosen, "name": NAME}
        response = client.post(reverse("admin:django_singlejob_joblock_clear"), sent, follow=True)
    return messages_of(response)


def fail(seconds: float) -> None:
    raise AssertionError(f"A web thread sleeps for {seconds} s.")
