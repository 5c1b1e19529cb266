"""``singleton_stop``: what it marks, what it says, and its exit status."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import singleton_job
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.process.holder import this_process, this_user
from tests.contract.acts import SECOND, expire, lock, start_run, take

if TYPE_CHECKING:
    from django_singlejob import Lease

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

WORKER = "django_singlejob.worker.1"


def told(*words: str, **options: Any) -> tuple[int, str, str]:
    """The exit status, and what is written to standard output and to standard error."""
    out, err = StringIO(), StringIO()
    status = 0
    try:
        call_command("singleton_stop", *words, stdout=out, stderr=err, no_color=True, **options)
    except SystemExit as done:
        status = int(str(done.code))
    return status, constant(out.getvalue()), constant(err.getvalue())


def constant(said: str) -> str:
    """The same for every run: without what is this machine's, or this moment's."""
    holder = this_process()
    said = re.sub(r"since \S+ \S+ UTC", "since then", said).replace(f"{holder.hostname}, pid {holder.pid}", "HOLDER")
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "TOKEN", said)


def start(job_name: str = "nightly", **terms: Any) -> Lease:
    return start_run(job_name, heartbeat_interval=20 * SECOND, **terms)


def test_a_run_is_stopped() -> None:
    start()
    line = "the next heartbeat of HOLDER (lock nightly since then, token TOKEN) asks it to end, within 20 seconds.\n"
    assert told("nightly") == (0, f"Stopped 'nightly': {line}", "")
    assert lock().stopped_by == this_user()
    assert told("nightly") == (0, f"'nightly' was stopped already: {line}", "")


def test_a_job_is_found_by_its_name_whatever_its_lock_is_called() -> None:
    start("hourly", name="shared")
    status, out, _ = told("hourly")
    assert (status, "lock shared for hourly since" in out) == (0, True)
    assert lock("shared").stopped_by == this_user()


def test_what_does_not_run_is_not_stopped() -> None:
    message = "'nightly' was not stopped: nothing holds its lock. The locks held now: {}.\n"
    assert told("nightly") == (1, "", message.format("none"))
    start("hourly")
    assert told("nightly") == (1, "", message.format("hourly"))
    assert lock("hourly").stopped_by == ""


def test_only_the_run_with_the_token_is_stopped() -> None:
    token = start().token
    status, out, err = told("nightly", token=uuid4())
    assert (status, out) == (1, "")
    assert err.startswith(
        "'nightly' was not stopped: the run with the token TOKEN has ended. This one goes on: HOLDER ("
    )
    assert lock().stopped_by == ""
    assert told("nightly", "--token", str(token))[0] == 0
    assert lock().stopped_by == this_user()


def test_of_a_job_and_a_lock_of_one_name_one_is_chosen_by_its_token() -> None:
    start("nightly", name="shared")
    token = take("nightly", heartbeat_interval=20 * SECOND).token
    status, _, err = told("nightly")
    assert (status, err.count("TOKEN")) == (2, 2)
    assert not locks().exclude(stopped_by="").exists()
    assert told("nightly", token=token)[0] == 0
    assert (lock("nightly").stopped_by, lock("shared").stopped_by) == (this_user(), "")


def test_a_worker_is_ended_with_a_signal() -> None:
    take(WORKER, heartbeat_interval=20 * SECOND)
    message = f"'{WORKER}' was not stopped: it is a worker: end its process with a signal.\n"
    assert told(WORKER) == (1, "", message)


def test_what_would_not_find_out_is_not_stopped() -> None:
    take("block")
    message = "'block' was not stopped: its holder sends no heartbeats, so it would not find out.\n"
    assert told("block") == (1, "", message)
    start()
    expire()
    message = "'nightly' was not stopped: its holder sends no heartbeats any more: clear its stale lock.\n"
    assert told("nightly") == (1, "", message)
    assert not locks().exclude(stopped_by="").exists()


def test_a_one_off_is_stopped_by_its_number() -> None:
    row = singleton_job("nightly")(len).enqueue([])
    words = ["--one-off", str(row.pk)]
    assert told(*words) == (1, "", f"'nightly #{row.pk}' was not stopped: it is not running.\n")
    start(one_off=row)
    line = f"'nightly #{row.pk}': its holder's next heartbeat asks it to end.\n"
    assert told(*words) == (0, f"Stopped {line}", "")
    assert lock().stopped_by == this_user()


def test_a_task_is_stopped_by_its_number() -> None:
    token = take(WORKER, heartbeat_interval=20 * SECOND).token
    now = lock(WORKER).acquired_at
    row = one_offs().create(task_path="shop.tasks.send", created_at=now, run_after=now)
    assert one_offs().claim(row, token, this_process())
    line = f"'shop.tasks.send #{row.pk}': it ends as soon as it asks.\n"
    assert told("--one-off", str(row.pk)) == (0, f"Stopped {line}", "")
    assert one_offs().get().stopped_by == this_user()


def test_a_number_that_is_unknown() -> None:
    assert told("--one-off", "7") == (2, "", "'7' was not stopped: there is no one-off with this number.\n")


@pytest.mark.parametrize("words", [[], ["nightly", "--one-off", "7"], ["--token", str(UUID(int=7))]], ids=str)
def test_what_does_not_go_together_is_refused(words: list[str]) -> None:
    with pytest.raises(CommandError):
        told(*words)


def test_as_json() -> None:
    lease = start()
    out = StringIO()
    call_command("singleton_stop", "nightly", format="json", stdout=out)
    facts = json.loads(out.getvalue())
    (stopped,) = facts.pop("stopped")
    assert facts == {"unchanged": [], "errors": []}
    assert (stopped["name"], stopped["token"], stopped["heartbeat_interval"]) == ("nightly", str(lease.token), 20.0)
    lease.release()
    status, said, _ = told("nightly", format="json")
    assert (status, [error["reason"] for error in json.loads(said)["errors"]]) == (1, ["over"])
    assert gates().exists()
