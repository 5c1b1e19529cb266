"""A night of thirty jobs in the ledger, on one screen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from django_singlejob import singleton_job
from django_singlejob.jobs.schedule import next_slot, parse, slots_between
from django_singlejob.models import JobRun
from django_singlejob.models.jobs import gates
from django_singlejob.models.notes import notes
from tests.browser.paths import OVERVIEW
from tests.browser.stage import SIZES, assert_accessible
from tests.browser.test_looks import THEMES, fits

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from playwright.sync_api import ViewportSize

    from tests.browser.conftest import Picture
    from tests.browser.stage import Stage

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.on_database("sqlite")]

SCREEN: ViewportSize = {"width": 1920, "height": 1080}
EVENING = (datetime.now(UTC) - timedelta(days=2)).replace(hour=18, minute=0, second=0, microsecond=0)
MORNING = EVENING + timedelta(hours=14)
SCHEDULES = "0 * * * *", "30 2 * * *", "*/15 * * * *", "0 3 * * *", "20 */4 * * *"


def a_night() -> None:
    """Thirty jobs, of which one failed, one was missed, and one was paused."""
    for number in range(30):
        name = f"job_{number:02}_of_the_shop"
        singleton_job(name, schedule=SCHEDULES[number % 5])(lambda: None)
        slots = [*slots_between(parse(SCHEDULES[number % 5]), EVENING - timedelta(days=2), datetime.now(UTC))]
        gates().remember(name)
        upcoming = next_slot(parse(SCHEDULES[number % 5]), datetime.now(UTC))
        gates().filter(name=name).update(schedule=SCHEDULES[number % 5], time_zone="UTC", next_slot=upcoming)
        JobRun.objects.bulk_create(_run(name, slot, number) for slot in slots if not _is_not_run(number, slot))
    noted = {"kind": "missed", "at": MORNING - timedelta(hours=1), "details": "dropped", "number": 1}
    slot = MORNING - timedelta(hours=5, minutes=30)
    notes().create(job_name="job_01_of_the_shop", first_slot=slot, last_slot=slot, **noted)
    for kind, at in ("paused", 7), ("resumed", 3):
        facts = {"reason": "supplier down", "by": "ada"} if kind == "paused" else {}
        notes().create(job_name="job_02_of_the_shop", kind=kind, at=MORNING - timedelta(hours=at, minutes=1), **facts)


def _is_not_run(number: int, slot: datetime) -> bool:
    is_paused = number == 2 and timedelta(hours=3) < MORNING - slot < timedelta(hours=7)
    return is_paused or (number == 1 and EVENING < slot < MORNING)


def _run(name: str, slot: datetime, number: int) -> JobRun:
    is_failed = number == 0 and slot == MORNING - timedelta(hours=4)
    return JobRun(
        job_name=name,
        lock=name,
        fence=1,
        token=uuid4(),
        status="failed" if is_failed else "successful",
        error="KeyError: 'customer'" if is_failed else "",
        trigger="schedule",
        slot=slot,
        hostname="web-1",
        pid=4711,
        started_at=slot + timedelta(seconds=1),
        finished_at=slot + timedelta(seconds=3),
        duration=timedelta(seconds=2),
        acquire_duration=timedelta(milliseconds=8),
    )


def test_a_night_of_thirty_jobs_is_on_one_screen(stage: Stage, superuser: User, picture: Picture) -> None:
    a_night()
    page = stage.visit(superuser, f"{OVERVIEW}ledger/?since={EVENING:%Y-%m-%dT%H:%M}&hours=14")
    for size in SIZES:
        page.set_viewport_size(SIZES[size])
        fits(page, size)
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size(SCREEN)
        picture(page, f"night-{theme}-desktop")
        page.set_viewport_size(SIZES["phone"])
        picture(page, f"night-{theme}-phone")
    assert_accessible(page)
    page.set_viewport_size(SCREEN)
    assert page.evaluate("document.documentElement.scrollHeight") <= SCREEN["height"]
    text = page.locator("main").inner_text()
    for told in "KeyError: 'customer'", "was given up", "supplier down", "1 missed, 1 failed, 15 paused":
        assert told in text, text[:3000]
