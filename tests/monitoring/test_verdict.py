from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest
from django.core.management import call_command
from django.utils import translation

from django_singlejob import singleton_job
from django_singlejob.conf import ZERO
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.passes import passes
from django_singlejob.monitoring.health import Level
from django_singlejob.monitoring.marks import Mark, record
from django_singlejob.monitoring.verdict import Scope, UnknownName, judge
from django_singlejob.process.clock import DBNow
from django_singlejob.process.holder import this_process
from django_singlejob.worker.due import follow_code
from tests.admin.pages import Page
from tests.contract.acts import HOUR, MINUTE, SECOND, expire, set_the_databases_clock, start_run, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django import Settings

    from django_singlejob.monitoring.verdict import Verdict
    from tests.admin.people import LogIn

pytest_plugins = ["tests.fixtures", "tests.admin.people"]
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

OVERVIEW = "/admin/django_singlejob/overview/"
DAY = timedelta(days=1)
# Not a whole number of any unit: what is said of it stays the same while a test runs.
LONG = 3 * HOUR + 5 * MINUTE + 30 * SECOND
OK, WARNING, CRITICAL = Level


# --- what may happen


def job(name: str = "nightly", **columns: Any) -> None:
    """A job with a schedule, which runs once in a while."""
    singleton_job(name, schedule="30 2 * * *")(print)
    follow_code()
    gates().filter(name=name).update(last_started_at=DBNow() - HOUR, **columns)


def work(queue: str = "default", *, count: int = 1, ago: timedelta = LONG, **columns: Any) -> None:
    """One-offs that have been due for that long."""
    facts: dict[str, Any] = {"task_path": "shop.tasks.mail", "queue_name": queue, "created_at": DBNow() - ago}
    one_offs().bulk_create(OneOffJob(**facts | {"run_after": DBNow() - ago} | columns) for _ in range(count))


def finished(status: str, queue: str = "default", *, count: int = 1, ago: timedelta = MINUTE) -> None:
    work(queue, count=count, status=status, finished_at=DBNow() - ago)


def worker(*queues: str, number: int = 1) -> str:
    """It is alive, and has nothing to do. Returns the name of its lock."""
    name = f"django_singlejob.worker.{number}"
    take(name, queues=list(queues))
    return name


# --- the number of situations


def all_is_well() -> None:
    job()
    worker()


def a_mistyped_queue() -> None:
    worker("default", "mail")
    work("mali", count=50)


def only_failures() -> None:
    worker()
    finished("failed", count=20)


def a_failure_among_many() -> None:
    worker()
    finished("failed")
    finished("done", count=19)


def failures_of_yesterday() -> None:
    worker()
    finished("failed", count=20, ago=DAY)


def no_worker() -> None:
    work(count=5)


def no_worker_yet() -> None:
    work(ago=4 * MINUTE)


def no_worker_and_nothing_to_do() -> None:
    work(ago=-DAY)


def workers_that_cannot_keep_up() -> None:
    worker()
    work(count=7)


def a_pass_by_cron() -> None:
    record(Mark(this_process()))
    work(ago=4 * MINUTE)


def a_pass_by_cron_that_leaves_a_queue_out() -> None:
    record(Mark(this_process(), ["default"]))
    work("mail")


def a_job_that_is_due_more_often_than_passes_begin() -> None:
    singleton_job("often", schedule=30 * SECOND)(print)
    singleton_job("all", schedule=30 * SECOND, catch_up="all")(print)
    singleton_job("hourly", schedule="@hourly")(print)
    record(Mark(this_process()))
    follow_code()


def the_same_beside_a_worker() -> None:
    a_job_that_is_due_more_often_than_passes_begin()
    worker()


def a_worker_that_died() -> None:
    worker()
    expire(worker("mail", number=2))


def the_last_worker_died() -> None:
    expire(worker())


def seen(hostname: str, ago: timedelta = ZERO, first: timedelta = DAY, **facts: Any) -> None:
    """A server that asked this long ago."""
    mine = Mark(this_process()._replace(hostname=hostname), **facts)
    record(mine)
    passes().filter(key=mine.key).update(seen_at=DBNow() - ago, first_seen_at=DBNow() - ago - first)


def a_server_that_has_stopped_asking() -> None:
    seen("web-1")
    seen("web-2", LONG)


def a_server_that_cannot_run_everything() -> None:
    seen("web-1")
    seen("web-2", trouble="Some jobs cannot be registered: ImportError: No module named 'stripe'.")


def a_failing_job() -> None:
    job(consecutive_failures=3)


def an_overdue_job() -> None:
    job(next_slot=DBNow() - LONG)


def a_job_ahead_of_the_clock() -> None:
    job(next_slot=DBNow() + 400 * DAY)


def a_job_that_nobody_asked_for() -> None:
    singleton_job("nightly", schedule="30 2 * * *")(print)


def an_overrunning_job() -> None:
    job(mean_duration=MINUTE, run_count=5)
    start_run()
    locks().update(acquired_at=DBNow() - LONG)


def a_stale_lock() -> None:
    job()
    start_run(lease=LONG)
    expire()


def a_stale_lock_of_no_job() -> None:
    take("deploy", lease=LONG)
    expire("deploy")


def an_impossible_lock() -> None:
    job()
    start_run()
    set_the_databases_clock(-LONG)


def a_paused_job() -> None:
    job(paused=True, consecutive_failures=3)
    worker()
    work(task_path="", job_name="nightly")


def a_job_whose_pause_has_just_ended() -> None:
    """A worker has not had the time to run what has waited."""
    job(paused=True, paused_until=DBNow() - MINUTE, next_slot=DBNow() - LONG)
    worker()
    work(task_path="", job_name="nightly")


def a_job_whose_pause_ended_long_ago() -> None:
    job(paused=True, paused_until=DBNow() - LONG, next_slot=DBNow() - LONG)
    worker()
    work(task_path="", job_name="nightly")


def all_at_once() -> None:
    a_failing_job()
    a_mistyped_queue()
    finished("failed", count=3)


def a_slow_job() -> None:
    job(next_slot=DBNow() - LONG)
    start_run("nightly")


def two_projects_in_one_database() -> None:
    """Each sets its own schedule, again and again."""
    job()
    gates().update(schedule="0 5 * * *", time_zone="UTC")


Situation = tuple["Callable[[], None]", Level, list[tuple[str, str]]]
SITUATIONS: list[Situation] = [
    (all_is_well, OK, []),
    (a_mistyped_queue, CRITICAL, [("unserved", "mali")]),
    (only_failures, CRITICAL, [("failed", "default")]),
    (a_failure_among_many, WARNING, [("failed", "default")]),
    (failures_of_yesterday, OK, []),
    (no_worker, CRITICAL, [("no_worker", "default")]),
    (no_worker_yet, OK, []),
    (no_worker_and_nothing_to_do, OK, []),
    (workers_that_cannot_keep_up, WARNING, [("late", "default")]),
    (a_pass_by_cron, OK, []),
    (a_pass_by_cron_that_leaves_a_queue_out, CRITICAL, [("unserved", "mail")]),
    (a_server_that_has_stopped_asking, WARNING, [("silent", "web-2")]),
    (a_server_that_cannot_run_everything, WARNING, [("impeded", "web-2")]),
    (a_job_that_is_due_more_often_than_passes_begin, WARNING, [("too_often", "often")]),
    (the_same_beside_a_worker, OK, []),
    (a_worker_that_died, WARNING, [("dead", "django_singlejob.worker.2")]),
    (the_last_worker_died, CRITICAL, [("dead", "django_singlejob.worker.1")]),
    (a_failing_job, CRITICAL, [("failing", "nightly")]),
    (an_overdue_job, CRITICAL, [("overdue", "nightly")]),
    (a_job_ahead_of_the_clock, CRITICAL, [("ahead", "nightly")]),
    (a_job_that_nobody_asked_for, WARNING, [("unseen", "nightly")]),
    (a_slow_job, WARNING, [("delayed", "nightly")]),
    (two_projects_in_one_database, WARNING, [("other_schedule", "nightly")]),
    (an_overrunning_job, WARNING, [("overrunning", "nightly")]),
    (a_stale_lock, CRITICAL, [("stale", "nightly")]),
    (a_stale_lock_of_no_job, CRITICAL, [("stale", "deploy")]),
    (an_impossible_lock, CRITICAL, [("impossible", "nightly")]),
    (a_paused_job, OK, []),
    (a_job_whose_pause_has_just_ended, OK, []),
    (a_job_whose_pause_ended_long_ago, CRITICAL, [("overdue", "nightly"), ("late", "default")]),
    (all_at_once, CRITICAL, [("unserved", "mali"), ("failing", "nightly"), ("failed", "default")]),
]
each_situation = pytest.mark.parametrize(
    ("happen", "level", "findings"), SITUATIONS, ids=lambda each: getattr(each, "__name__", "")
)


def checked(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status of `singleton_status --check`, and what it says as JSON."""
    output, status = StringIO(), 0
    try:
        call_command("singleton_status", "--check", "--format", "json", *arguments, stdout=output)
    except SystemExit as exit_:
        status = int(str(exit_.code))
    return status, json.loads(output.getvalue())


def kinds(verdict: Verdict) -> list[tuple[str, str]]:
    return [(finding.kind.value, finding.subject) for finding in verdict.findings]


@each_situation
def test_the_command_and_the_admin_say_the_same_and_each_finding_has_a_link(
    admin_client: Client, happen: Callable[[], None], level: Level, findings: list[tuple[str, str]]
) -> None:
    happen()
    status, said = checked()
    assert status == level
    assert said["level"] == level.name.lower()
    assert [(finding["kind"], finding["subject"]) for finding in said["findings"]] == findings

    response = admin_client.get(OVERVIEW)
    colour, headline = response.context["headline"]
    assert colour == {OK: "good", WARNING: "warn", CRITICAL: "bad"}[level]
    assert headline.startswith({OK: "All is well", WARNING: "Warning: ", CRITICAL: "Critical: "}[level])
    shown = [(str(row["what_happened"]), str(row["what_to_do"])) for row in response.context["troubles"]]
    told = [(finding["message"], finding["remedy"]) for finding in said["findings"]]
    assert [*map(to_the_minute, shown)] == [*map(to_the_minute, told)]
    page = Page(response.content.decode())
    for happened, to_do in shown:
        assert happened in page.text
        assert to_do in page.text
        assert "{" not in happened + to_do
    links = [link for row in response.context["troubles"] for link in Page(row["where"]).links]
    assert len(links) == len(findings)
    assert [url for url in links if admin_client.get(urljoin(OVERVIEW, url)).status_code != 200] == []


def to_the_minute(said: tuple[str, ...]) -> list[str]:
    """A second may pass between the command and the page."""
    return [re.sub(r" \d+ seconds?", "", each) for each in said]


# --- people who may not see one-offs


@pytest.mark.parametrize("happen", [a_mistyped_queue, only_failures, no_worker, workers_that_cannot_keep_up])
def test_who_may_not_see_one_offs_gets_no_finding_on_them(log_in: LogIn, happen: Callable[[], None]) -> None:
    happen()
    assert judge(with_one_offs=False).level == OK
    clerk = log_in("clerk", "view_jobstatus", "view_joblock", "view_jobrun")
    context = clerk.get(OVERVIEW).context
    assert (context["headline"][0], context["troubles"], context["queues"]) == ("good", [], [])


# --- failures


@pytest.mark.parametrize(
    ("failed", "done", "failures", "level"),
    [(3, 0, 1, CRITICAL), (3, 3, 3, CRITICAL), (3, 4, 3, WARNING), (3, 0, 4, WARNING), (0, 3, 1, OK)],
)
def test_a_queue_is_critical_if_half_of_what_finished_failed(
    failed: int, done: int, failures: int, level: Level
) -> None:
    worker()
    finished("failed", count=failed)
    finished("done", count=done)
    assert judge(failures=failures).level == level


def test_the_number_changes_nothing_else() -> None:
    a_stale_lock()
    a_mistyped_queue()
    assert judge(failures=100).level == CRITICAL
    assert kinds(judge(failures=100)) == kinds(judge())


# --- a part of everything


def test_the_one_offs_of_a_job_that_is_ignored_are_not_counted() -> None:
    work(task_path="", job_name="nightly", count=2)
    work(count=1)
    assert [queue.due for queue in judge().queues] == [3]
    assert [queue.due for queue in judge(Scope(ignored=["nightly"])).queues] == [1]


def test_a_part_has_only_the_workers_that_serve_it() -> None:
    job()
    worker("mail")
    worker("media", number=2)
    worker(number=3)
    expire(worker("mail", number=4))
    assert [worker.queues for worker in judge(Scope(queues=["mail"])).workers] == [("mail",), (), ("mail",)]
    verdict = judge(Scope(jobs=["nightly"]))
    assert (verdict.workers, verdict.queues, verdict.findings) == ([], [], [])


def test_a_queue_that_a_worker_names_is_shown_though_it_is_empty() -> None:
    worker("mail")
    assert [(queue.name, queue.due) for queue in judge().queues] == [("mail", 0)]
    assert [queue.name for queue in judge(Scope(queues=["mail"])).queues] == ["mail"]
    assert judge(Scope(ignored=["mail"])).queues == []


def test_a_queue_that_nobody_has_used_is_refused() -> None:
    worker("mail")
    finished("done", "media", ago=DAY)
    work("later", ago=-DAY)
    assert judge(Scope(queues=["mail", "media", "later"])).level == OK
    with pytest.raises(UnknownName, match=r"There is no queue 'mali': .* Check the name: "):
        judge(Scope(queues=["mail", "mali"]))


# --- what it costs


def test_a_translation_is_looked_up_when_a_finding_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    a_mistyped_queue()
    (finding,) = judge().findings
    with translation.override("de"):
        monkeypatch.setattr("django.utils.translation._trans.gettext", lambda text: "Der Stand: " + text)
        assert str(finding.what_to_do).startswith("Der Stand: Start singleton_worker --queue mali.")


# --- nothing to judge


def test_a_project_without_any_job_is_told_so(settings: Settings) -> None:
    settings.TASKS = {}
    (finding,) = judge().findings
    assert (finding.kind, finding.level) == ("no_job", WARNING)
    assert "No job is registered." in str(finding.what_happened)
    assert judge(Scope(ignored=["nightly"])).level == WARNING
    with pytest.raises(SystemExit) as left:
        call_command("singleton_status", "--check", stdout=StringIO())
    assert left.value.code == 1


@pytest.mark.parametrize("package", ["django.tasks", "django_tasks"])
def test_but_not_one_that_has_tasks_or_whose_locks_are_in_use(settings: Settings, package: str) -> None:
    settings.TASKS = {"default": {"BACKEND": "shop.backends.Own"}}
    assert not judge().findings
    settings.TASKS = {"default": {"BACKEND": f"{package}.backends.immediate.ImmediateBackend"}}
    assert judge().findings
    take("backup")
    assert not judge().findings
