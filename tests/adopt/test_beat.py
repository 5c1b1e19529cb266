"""What Celery beat sends becomes jobs that send it."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from celery import current_app
from celery.schedules import BaseSchedule, crontab, schedule
from django.core.management import call_command
from django.test import override_settings
from hypothesis import given, settings as hypothesis_settings, strategies as st

from django_singlejob.adopt.beat import adopt_beat, of_entry, of_row
from django_singlejob.adopt.jobs import differences, jobs_py
from django_singlejob.jobs import registry
from django_singlejob.jobs.schedule import next_slot, parse
from tests.databases import APPS
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.brokers", "tests.recipes.modules"]
pytestmark = [pytest.mark.usefixtures("fresh_process", "eager_celery"), pytest.mark.on_database("sqlite")]

NOW = datetime(2026, 11, 28, 12, 0, 20, tzinfo=UTC)
TASKS = """
import celery

@celery.shared_task
def report(*args, **kwargs):
    sent.append((args, kwargs))

@celery.shared_task(name="by another name")
def other(*args):
    sent.append(args)
"""


class Sunset(BaseSchedule):  # type: ignore[misc]
    """As Celery's `solar`, which needs a library."""


@pytest.fixture
def sent(modules: Modules) -> list[Any]:
    """What the tasks of ``shop.tasks`` have got."""
    got: list[Any] = []
    modules("shop.tasks", TASKS, sent=got)
    return got


@pytest.fixture
def adopted(settings: Any) -> Callable[..., str]:
    def adopt(**entries: dict[str, Any]) -> str:
        settings.CELERY_BEAT_SCHEDULE = entries
        text = jobs_py(adopt_beat("Europe/Rome"))
        exec(compile(text, "jobs.py", "exec"), {"__name__": "tests.adopt"})
        return text

    return adopt


def entry(when: Any, task: str = "shop.tasks.report", **more: Any) -> dict[str, Any]:
    return {"task": task, "schedule": when, **more}


@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_a_job_sends_what_beat_sent(adopted: Callable[..., str], sent: list[Any]) -> None:
    text = adopted(
        plain=entry(crontab(minute=5)),
        given=entry(crontab(hour=3, minute=0), args=(1, "a"), kwargs={"deep": [True]}),
        queued=entry(30.0, args=[2], options={"queue": "mail", "priority": 3}),
        named=entry(timedelta(hours=2), task="by another name", args=[3]),
    )
    for name in ("plain", "given", "queued"):
        call_command("run_singleton", name, now=True, verbosity=0)
    assert "* queued: the one line begins it once a minute" in text
    assert sent == [((), {}), ((1, "a"), {"deep": [True]}), ((2,), {})]
    found = {job.name: (job.schedule, job.time_zone) for job in registry.all_jobs()}
    assert found == {
        "plain": ("5 * * * *", "UTC"),
        "given": ("0 3 * * *", "UTC"),
        "queued": (timedelta(seconds=30), None),
        "named": (timedelta(hours=2), None),
    }


def test_the_code_is_what_one_would_write(adopted: Callable[..., str], sent: list[Any]) -> None:
    text = adopted(
        **{
            "hourly-report": entry(crontab(minute=5), args=[1]),
            "mail": entry(600, kwargs={"to": "ops"}, options={"queue": "mail"}),
            "import": entry(crontab(minute=0), task="of.another.project"),
        }
    )
    assert text.startswith(
        """\
from datetime import timedelta

from celery import current_app
from django_singlejob import singleton_job

import shop.tasks


# hourly-report: shop.tasks.report
@singleton_job(schedule="5 * * * *", time_zone="UTC")
def hourly_report():
    shop.tasks.report.delay(1)


# mail: shop.tasks.report
@singleton_job(schedule=timedelta(seconds=600))
def mail():
    shop.tasks.report.apply_async(kwargs={'to': 'ops'}, queue="mail")


# import: of.another.project
@singleton_job(schedule="0 * * * *", time_zone="UTC")
def project():
    current_app.send_task("of.another.project")

# What differs:
"""
    )
    assert "# * mail: its interval counts from midnight" in text
    assert "# * project: it is sent by its name" in text
    assert sent == []


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute="*/15", hour="8-17", day_of_week="mon-fri"), "*/15 8-17 * * mon-fri"),
        (crontab(minute={0, 30}, hour=[3]), "0,30 3 * * *"),
        (crontab(0, 0, day_of_week="sat-mon"), "0 0 * * 0,1,6"),
        (crontab(0, 0, day_of_week="monday,Friday"), "0 0 * * 1,5"),
        (crontab(0, 0, day_of_month="1-31", day_of_week="sun"), "0 0 * * sun"),
        (crontab(0, 0, day_of_month="*/2", day_of_week="mon"), "0 0 */2 * mon"),
        (crontab(0, 0, day_of_month="1-7", day_of_week="mon,fri"), "0 0 * * 1#1,5#1"),
        (crontab(0, 0, day_of_month="29-31", day_of_week=0), "0 0 * * 0#5"),
        (crontab(0, 22, month_of_year="*/3", day_of_month="1"), "0 22 1 */3 *"),
    ],
    ids=str,
)
def test_a_rule_means_the_same(adopted: Callable[..., str], rule: crontab, expected: str) -> None:
    adopted(rule=entry(rule))
    assert registry.get("rule").schedule == expected
    assert [*differences(adopt_beat("UTC").jobs, NOW)] == []


@pytest.mark.parametrize("name", ["a\nprint('injected')\n#", "a\rb", "a\0b", "\u2028", "class", "shop", "é", "9"])
def test_no_name_becomes_code(adopted: Callable[..., str], sent: list[Any], name: str) -> None:
    text = adopted(**{name: entry(60), "b": entry(60), "c": entry(60, task=f"of.{name}")})
    assert "\nprint" not in text
    assert {len(job.name) > 0 for job in registry.all_jobs()} == {True}
    registry.get("b").func()
    assert sent == [((), {})]


def test_long_names_differ(adopted: Callable[..., str]) -> None:
    adopted(**{"a" * 300 + str(number): entry(60) for number in range(4)})
    assert len(registry.all_jobs()) == 4


@pytest.mark.parametrize("names", [{"from": 1}, {"__debug__": 1}, {"self": 1}, {"a b": 1}, {"ﬁ": 1}])
def test_any_keyword_arrives(adopted: Callable[..., str], sent: list[Any], names: dict[str, int]) -> None:
    assert f"apply_async(kwargs={names!r})" in adopted(a=entry(60, kwargs=names))


class Unusual(dict[str, Any]):
    """As a row whose schedule needs a library that is not there."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError(f"{name} needs a library")


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        Unusual(),
        {"schedule": 60},
        {"task": "shop.tasks.report"},
        entry(60, args=5),
        entry(60, kwargs=[1]),
        entry(60, kwargs={1: 2}),
        entry(1e20),
        entry(float("nan")),
        entry(True),
        entry(crontab()) | {"task": None},
    ],
)
def test_what_cannot_be_read_stays_and_the_others_do_not(
    adopted: Callable[..., str], sent: list[Any], wrong: Any
) -> None:
    text = adopted(wrong=wrong, right=entry(60))
    assert [job.name for job in registry.all_jobs()] == ["right"]
    assert "# * wrong: " in text


class Workdays(crontab):  # type: ignore[misc]
    """Not on holidays."""

    def is_due(self, last_run_at: datetime) -> Any:
        """Not on holidays."""


def test_a_rule_of_the_project_stays(adopted: Callable[..., str]) -> None:
    assert "a job has no schedule like" in adopted(a=entry(Workdays(minute=5)))


def test_the_schedules_of_the_app_are_those_that_beat_sends(adopted: Callable[..., str]) -> None:
    current_app.conf.beat_schedule = {"b": entry(60)}
    adopted(a=entry(60))
    assert [job.name for job in registry.all_jobs()] == ["b"]


def test_what_is_added_late_is_there(adopted: Callable[..., str], sent: list[Any]) -> None:
    @current_app.on_after_finalize.connect(weak=False)
    def add(sender: Any, **_: object) -> None:
        sender.add_periodic_task(60, sender.signature("shop.tasks.report", args=(7,)), name="late")

    assert "shop.tasks.report.delay(7)" in adopted()


def test_if_nothing_is_found_it_says_what_to_do(adopted: Callable[..., str]) -> None:
    assert "import it in the project's __init__.py" in adopted()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (entry(Sunset()), "a job has no schedule like"),
        (entry(crontab(0, 0, day_of_month="13", day_of_week="fri")), "have to match, and no cron expression says so"),
        (entry(crontab(minute=1), args=[object()]), "cannot be written into a file"),
        (entry(timedelta(0)), "its schedule is not understood"),
    ],
    ids=["solar", "both days", "an object", "no interval"],
)
def test_what_cannot_become_a_job_stays(adopted: Callable[..., str], wrong: dict[str, Any], why: str) -> None:
    text = adopted(wrong=wrong)
    assert "# These stay as they are:\n#\n# * wrong: shop.tasks.report" in text
    assert why in text
    assert registry.all_jobs() == []


def test_its_zone_is_that_of_celery(settings: Any) -> None:
    current_app.conf.timezone = "America/New_York"
    settings.CELERY_BEAT_SCHEDULE = {"a": entry(crontab(minute=5))}
    assert [job.zone for job in adopt_beat("UTC").jobs] == ["America/New_York"]


class Zoned(crontab):  # type: ignore[misc]
    """As the rows of django-celery-beat have it: it is copied with its zone."""

    def __init__(self, *given: Any, tz: Any = None) -> None:
        super().__init__(*given)
        self.tz = tz

    def __reduce__(self) -> Any:
        return partial(Zoned, tz=self.tz), (*super().__reduce__()[1],)


def test_a_row_has_its_own_zone(settings: Any) -> None:
    rule = Zoned("30", "4", tz=ZoneInfo("America/New_York"))
    settings.CELERY_BEAT_SCHEDULE = {"a": entry(rule)}
    (job,) = adopt_beat("UTC").jobs
    assert (job.zone, job.schedule, job.former is not None) == ("America/New_York", "30 4 * * *", True)


def test_a_change_of_clocks_is_reported(settings: Any) -> None:
    current_app.conf.timezone = "Europe/Rome"
    settings.CELERY_BEAT_SCHEDULE = {"a": entry(crontab(minute=30, hour=2))}
    found = [*differences(adopt_beat("UTC").jobs, NOW)]
    assert found == [
        "a: before, it was due at 2027-03-28 03:30:00+02:00, and the job is due at 2027-03-28 03:00:00+02:00."
    ]


FIELDS = st.fixed_dictionaries(
    {
        "minute": st.sampled_from(["*", "0", "*/7", "5,35", "10-20/3", "59"]),
        "hour": st.sampled_from(["*", "0", "*/5", "1-3", "2,14", "22-2"]),
        "day_of_month": st.sampled_from(["*", "1", "29", "*/10", "8-14"]),
        "month_of_year": st.sampled_from(["*", "3", "10", "*/3", "3-10", "11-2"]),
        "day_of_week": st.sampled_from(["*", "0", "6", "1-5", "sun,wed", "*/2", "fri-sun"]),
    }
)


@hypothesis_settings(deadline=None)
@given(FIELDS, st.integers(0, 700 * 1440))
def test_it_agrees_with_celery(fields: dict[str, str], minutes: int) -> None:
    adopted = adopt_rule(crontab(**fields))
    if not adopted:
        return
    at = begin = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    assert adopted.former
    for expected in islice(adopted.former(begin), 20):
        at = next_slot(parse(adopted.schedule, adopted.zone), at)
        assert at == expected


def adopt_rule(rule: crontab) -> Any:
    with override_settings(CELERY_BEAT_SCHEDULE={"rule": entry(rule)}):
        return next(iter(adopt_beat("UTC").jobs), None)


# --- rows of django-celery-beat


def row(**given: Any) -> Any:
    plain = dict.fromkeys(("queue", "exchange", "routing_key", "priority", "headers", "expire_seconds"))
    dates = dict.fromkeys(("expires", "start_time"))
    rest = {"name": "a row", "task": "shop.tasks.report", "schedule": crontab(minute=5), "args": "[1]", "kwargs": "{}"}
    return SimpleNamespace(**{**plain, **dates, **rest, "enabled": True, "one_off": False, **given})


def test_a_row_is_like_an_entry() -> None:
    rule = crontab(minute=5)
    options = {"queue": "mail", "expires": 60}
    expected = of_entry("a row", entry(rule, args=[1], kwargs={"a": [1]}, options=options))
    found = of_row(row(schedule=rule, queue="mail", expire_seconds=60, kwargs='{"a": [1]}'), NOW)
    assert replace(found, notes=()) == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"enabled": False}, "it is disabled"),
        ({"one_off": True}, "it is sent once, and no more"),
        ({"expires": NOW - timedelta(days=1)}, "it was sent until 2026-11-27 12:00:20+00:00"),
        ({"expires": NOW + timedelta(days=1)}, ""),
    ],
    ids=["disabled", "once", "over", "not over"],
)
def test_a_row_that_is_over_stays(given: dict[str, Any], why: str) -> None:
    assert of_row(row(**given), NOW).why == why


def test_a_row_with_a_begin_or_an_end_says_so() -> None:
    later = of_row(row(start_time=NOW + timedelta(days=1), expires=NOW + timedelta(days=2)), NOW)
    assert [note.partition(":")[0] for note in later.notes[:2]] == [
        "it is sent until 2026-11-30 12",
        "it is not sent before 2026-11-29 12",
    ]


# --- by the command


def test_the_command_reads_them(settings: Any, capsys: pytest.CaptureFixture[str], sent: list[Any]) -> None:
    settings.CELERY_BEAT_SCHEDULE = {
        "a": entry(crontab(minute=5)),
        "b": entry(schedule(timedelta(minutes=5))),
        "c": entry(Sunset()),
    }
    line = snippet("coming-from/celery-beat.md", "Come from Celery beat", "console")
    assert line == "$ python manage.py singleton_adopt --celery --check\n"
    call_command("singleton_adopt", celery=True, check=True)
    said, complained = capsys.readouterr()
    assert "def a():\n    shop.tasks.report.delay()" in said
    assert complained == "Jobs: 2; staying: 1; due at other instants: 0.\n"
    assert sent == []


def test_it_says_that_celery_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "celery", None)
    with pytest.raises(SystemExit, match="66"):
        call_command("singleton_adopt", celery=True)
    assert capsys.readouterr().err.startswith("Celery is not found: ")
