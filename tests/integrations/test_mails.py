"""What those hear whom ``notify`` names: once, by one server, when something becomes critical, and when it is over."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.core import mail
from django.core.mail.backends import locmem
from django.db import connections
from django.db.backends.signals import connection_created
from django.db.models import F

from django_singlejob import SkipRun, current_run, singleton_job
from django_singlejob.exceptions import SingleJobError
from django_singlejob.integrations import mails
from django_singlejob.models import OneOffJob
from django_singlejob.models.alerts import alerts
from django_singlejob.models.jobs import gates
from django_singlejob.models.passes import passes
from django_singlejob.models.runs import runs
from django_singlejob.monitoring.acknowledging import acknowledge
from django_singlejob.monitoring.marks import Mark, mark, record
from django_singlejob.monitoring.verdict import Scope
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from django_singlejob.worker.due import follow_code
from tests.contract.acts import HOUR, MINUTE, expire, fall_behind, scheduled, start_run, ticked
from tests.databases import APPS
from tests.ports import quiet_port
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_django import Settings

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db(transaction=True, available_apps=APPS)]

DAY = timedelta(days=1)
TO = "ops@shop.example"


@pytest.fixture(autouse=True)
def notified(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "NOTIFY": [TO]}
    taken_by(settings, "locmem")


def taken_by(settings: Settings, backend: str, **options: Any) -> None:
    """Mails go to this backend of Django."""
    path = f"django.core.mail.backends.{backend}.EmailBackend"
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": path, "OPTIONS": options}}
    else:
        settings.EMAIL_BACKEND = path
        for name, value in options.items():
            setattr(settings, f"EMAIL_{name.upper()}", value)


def fail() -> None:
    print("page 7 of 9")
    raise KeyError("customer")


def failing(name: str = "nightly", **options: Any) -> Any:
    return singleton_job(name, **options)(fail)


def run(job: Any) -> None:
    with suppress(Exception):
        job()


def told(count: int) -> list[tuple[str, str, list[str]]]:
    """The subjects, the texts and the addresses of the mails, once there are as many as expected."""
    eventually(lambda: len(mail.outbox) >= count)
    settled()
    assert len(mail.outbox) == count, [each.subject for each in mail.outbox]
    return [(str(each.subject), str(each.body), each.to) for each in mail.outbox]


def settled() -> None:
    """Nothing waits to be sent any more."""
    eventually(lambda: not mails._outbox._waiting)


def subjects(count: int) -> list[str]:
    return [subject.removeprefix("[Django] ") for subject, _text, _to in told(count)]


def looked(count: int = 0) -> list[str]:
    """A server looks for what is wrong. The subjects, of all mails."""
    mails.tell_all()
    settled()
    return subjects(count)


# --- failures


def test_a_failure_is_sent_at_once_and_once() -> None:
    job = failing()
    run(job)
    ((subject, text, to),) = told(1)
    assert subject == "[Django] nightly: failing"
    assert to == [TO]
    for words in (
        "The last run of the job 'nightly' failed.",
        "KeyError: 'customer'",
        "in fail",
        "singleton_why nightly",
    ):
        assert words in text, text
    run(job)
    told(1)


@pytest.mark.django_db
def test_in_a_transaction_of_a_projects_test_nothing_looks_for_it() -> None:
    others = list[Any]()

    def note(connection: Any, **_: Any) -> None:
        others.append(connection)

    connection_created.connect(note)
    run(failing())
    settled()
    connection_created.disconnect(note)
    assert (others, mail.outbox) == ([], [])


def test_it_is_sent_again_after_a_day_and_when_it_is_over() -> None:
    flag = [True]

    @singleton_job("nightly")
    def job() -> None:
        if flag:
            raise KeyError("customer")

    run(job)
    told(1)
    alerts().update(sent_at=DBNow() - DAY - MINUTE)
    run(job)
    assert subjects(2) == ["nightly: failing"] * 2
    flag.clear()
    run(job)
    assert subjects(3)[-1] == "nightly: well again"
    run(job)
    told(3)
    flag.append(True)
    run(job)
    assert subjects(4)[-1] == "nightly: failing"


@pytest.mark.parametrize("prefix", ["[x]\n", "[Django] "])
def test_a_subject_is_one_line(settings: Settings, prefix: str) -> None:
    settings.EMAIL_SUBJECT_PREFIX = prefix
    run(failing())
    assert told(1)[0][0] == f"{prefix.strip()} nightly: failing"


def paused() -> None:
    gates().update(paused=True)


def known() -> None:
    acknowledge("nightly", ["failing"], None, by="anna", reason="")


def overdue_besides() -> None:
    gates().update(schedule="@hourly", time_zone="UTC", next_slot=DBNow() - HOUR)


@pytest.mark.parametrize("happen", [paused, known, overdue_besides])
def test_what_proves_no_success_is_no_recovery(happen: Callable[[], None]) -> None:
    run(failing())
    told(1)
    happen()
    mails.tell_all()
    settled()
    assert "nightly: well again" not in [str(each.subject).removeprefix("[Django] ") for each in mail.outbox]


def test_nor_is_a_project_that_is_switched_off(settings: Settings) -> None:
    run(failing())
    told(1)
    settings.SINGLEJOB = {**settings.SINGLEJOB, "ENABLED": False}
    mails.tell_all()
    told(1)


def test_a_recovery_that_cannot_be_sent_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    alerts().create(subject="nightly", kind="failing", sent_at=DBNow(), is_sent=True)
    answers, send = [False], mails.send
    monkeypatch.setattr(mails, "send", lambda *given: answers.pop() if answers else send(*given))
    job = singleton_job("nightly")(lambda: None)
    job()
    settled()
    told(0)
    job()
    assert subjects(1) == ["nightly: well again"]
    assert not alerts().exists()


def test_a_backend_that_is_broken_holds_up_no_other_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mails, "PAUSE", 0.0)
    broken, take_them = [RuntimeError("no quota")] * mails.TRIES, locmem.EmailBackend.send_messages

    def taken(self: Any, sent: Any) -> int:
        if broken:
            raise broken.pop()
        return take_them(self, sent)

    monkeypatch.setattr(locmem.EmailBackend, "send_messages", taken)
    for name in "first", "second":
        gates().create(name=name, consecutive_failures=1, last_status="failed", last_started_at=DBNow())
    assert looked(1) == ["second: failing"]


def test_a_recovery_from_what_nobody_has_heard_of_is_not_told() -> None:
    alerts().create(subject="nightly", kind="failing", sent_at=DBNow())
    singleton_job("nightly")(lambda: None)()
    told(0)


def test_what_a_job_skips_is_not_told() -> None:
    @singleton_job("nightly")
    def job() -> None:
        raise SkipRun("holiday")

    job()
    told(0)


def test_a_job_has_addresses_of_its_own_or_none() -> None:
    run(failing("own", notify="anna@shop.example"))
    assert told(1)[0][2] == ["anna@shop.example"]
    run(failing("none", notify=[]))
    told(1)


def test_only_the_failure_that_makes_it_critical_is_sent() -> None:
    job = failing(failures=3)
    for _ in range(2):
        run(job)
    told(0)
    run(job)
    assert "The last 3 runs" in told(1)[0][1]


def test_without_addresses_nothing_is_looked_for(settings: Settings) -> None:
    settings.SINGLEJOB = {key: value for key, value in settings.SINGLEJOB.items() if key != "NOTIFY"}
    run(failing())
    mails.tell_all()
    told(0)
    assert not alerts().exists()


def test_what_is_acknowledged_is_not_told() -> None:
    run(failing())
    told(1)
    alerts().update(sent_at=DBNow() - DAY - MINUTE)
    acknowledge("nightly", ["failing"], None, by="anna", reason="known")
    assert looked(1) == ["nightly: failing"], "Nothing is sent again."


def test_a_link_leads_to_the_run(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "ADMIN_URL": "https://shop.example/admin/"}
    run(failing())
    (row,) = runs()
    assert f"https://shop.example/admin/django_singlejob/jobrun/{row.pk}/change/" in told(1)[0][1]


# --- what a server looks for


def test_an_overdue_job_is_sent_by_whichever_server_looks() -> None:
    job = scheduled()
    follow_code()
    fall_behind(job)
    assert looked(1) == ["nightly: overdue"]
    assert looked(1) == ["nightly: overdue"]
    ticked()
    assert looked(2)[-1] == "nightly: well again"


def test_a_dead_holder_is_sent() -> None:
    start_run("nightly")
    expire()
    assert looked(1) == ["nightly: stale"]


def test_a_server_that_does_not_ask_any_more_is_sent() -> None:
    mine = Mark(this_process()._replace(hostname="web-9"))
    record(mine)
    passes().update(seen_at=DBNow() - HOUR, first_seen_at=DBNow() - 2 * DAY)
    assert looked(1) == ["web-9: not asking any more"]


def test_a_server_that_is_gone_for_good_is_forgotten_here_too() -> None:
    record(Mark(this_process()._replace(hostname="web-9")))
    passes().update(seen_at=DBNow() - HOUR, first_seen_at=DBNow() - 2 * DAY)
    assert looked(1) == ["web-9: not asking any more"]
    passes().update(seen_at=DBNow() - 4 * DAY, first_seen_at=DBNow() - 6 * DAY)
    assert looked(1) == ["web-9: not asking any more"]  # that it is well is not proven
    assert not alerts().exists()


def test_a_queue_is_well_again_once_nothing_is_left_in_it() -> None:
    failing().enqueue()
    OneOffJob.objects.update(run_after=DBNow() - HOUR)
    (subject,) = looked(1)
    assert subject.startswith("default: ")
    gates().remember("nightly")
    gates().pause("nightly")
    assert looked(1) == [subject]  # a pause proves nothing
    gates().resume("nightly")
    OneOffJob.objects.update(status="done", finished_at=DBNow())
    assert looked(2)[-1] == "default: well again"


def test_so_is_one_in_which_nothing_has_failed_for_an_hour() -> None:
    failing().enqueue()
    OneOffJob.objects.update(status="failed", finished_at=DBNow())
    (subject,) = looked(1)
    assert subject.startswith("default: ")
    OneOffJob.objects.update(finished_at=DBNow() - 2 * HOUR)
    assert looked(2)[-1] == "default: well again"


def test_another_trouble_of_a_queue_is_no_recovery() -> None:
    failing().enqueue()
    OneOffJob.objects.update(run_after=DBNow() - HOUR)
    (first,) = looked(1)
    record(Mark(this_process(), queues=["mail"]))  # a worker begins, but for another queue
    (_, second) = looked(2)
    assert first != second
    assert not second.endswith("well again")


def test_slots_that_were_given_up_are_told_once_a_day() -> None:
    job = scheduled(catch_up="none")
    follow_code()
    fall_behind(job, 3)
    ticked()
    text = told(1)[0][1]
    assert "of the job 'nightly' did not run in time" in text
    gates().update(next_slot=DBNow() - 3 * HOUR)
    ticked()
    told(1)


@pytest.mark.parametrize(("away", "expected"), [(5 * MINUTE, ["nightly: overdue"]), (20 * MINUTE, [])])
def test_a_server_looks_when_it_is_marked_unless_it_was_away(away: timedelta, expected: list[str]) -> None:
    job = scheduled()
    follow_code()
    fall_behind(job)
    record(Mark(this_process()))
    passes().update(seen_at=DBNow() - away)
    mark([], [], is_once=True, is_first=True)
    assert subjects(len(expected)) == expected


@pytest.mark.parametrize(("ago", "expected"), [(2 * MINUTE, ["nightly: overdue"]), (20 * MINUTE, [])])
def test_a_container_with_a_new_name_looks_unless_all_were_away(ago: timedelta, expected: list[str]) -> None:
    job = scheduled()
    follow_code()
    fall_behind(job)
    record(Mark(this_process()._replace(hostname="pod-1")))
    passes().update(seen_at=DBNow() - ago)
    mark([], [], is_once=True, is_first=True)
    assert subjects(len(expected)) == expected


def test_of_ten_servers_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    job = scheduled()
    follow_code()
    fall_behind(job)
    decided, at_once = set(), mails.send

    def look() -> None:
        try:
            mails._look(Scope(), None)
        finally:
            decided.add(get_ident())
            connections.close_all()

    def send(to: Sequence[str], subject: str, text: str) -> bool:
        decided.add(get_ident())
        eventually(lambda: len(decided) == 10)  # so none finds out that the mail was sent before it decides
        return at_once(to, subject, text)

    monkeypatch.setattr(mails, "send", send)

    threads = [Thread(target=look) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert subjects(1) == ["nightly: overdue"]


# --- mail servers


def test_a_mail_that_no_server_takes_is_a_line_and_is_sent_later(
    settings: Settings, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mails, "PAUSE", 0.0)
    taken_by(settings, "smtp", host="localhost", port=quiet_port())
    run(failing())
    eventually(lambda: alerts().filter(sent_at__isnull=False).exists())
    settled()
    assert "nightly: failing. This could not be mailed to ops@shop.example: " in capfd.readouterr().err
    taken_by(settings, "locmem")
    assert looked() == [], "For five minutes, it is another server's turn."
    alerts().update(sent_at=F("sent_at") - mails.AGAIN_AFTER)
    assert looked(1) == ["nightly: failing"]


def test_the_job_does_not_wait_for_the_mail_server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def hang(*_: Any) -> bool:
        eventually(lambda: said)
        return True

    monkeypatch.setattr(mails, "send", hang)
    run(failing())
    singleton_job("other")(lambda: said.append(str(current_run())))()
    settled()
    assert alerts().filter(is_sent=True).count() == 1


@pytest.mark.parametrize("notify", ["nobody", ["a@b.example", 7], "a@b.example, c@d.example", 7, {"a@b.example"}])
def test_what_is_no_address_is_refused(notify: Any) -> None:
    with pytest.raises(SingleJobError, match="must be a mail address, or a list of these"):
        singleton_job("nightly", notify=notify)(fail)


@pytest.mark.parametrize("failures", [0, -1, True, "3", 2.5])
def test_so_is_a_number_of_failures_that_makes_no_sense(failures: Any) -> None:
    with pytest.raises(SingleJobError, match="but must be a whole number from 1"):
        singleton_job("nightly", failures=failures)(fail)


def test_that_nothing_waits_when_the_process_is_idle() -> None:
    run(failing())
    told(1)
    eventually(lambda: not mails._outbox._has_thread)
