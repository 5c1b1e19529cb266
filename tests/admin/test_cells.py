from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.utils.html import format_html

from django_singlejob.admin import cells
from django_singlejob.admin.cells import (
    badge,
    breakable,
    clock_time,
    distance,
    duration,
    first_line,
    link,
    moment,
    narrow,
    noted,
)
from django_singlejob.models import JobRun, OneOffJob
from django_singlejob.monitoring.health import Level, State

HOSTILE = '<b class="x">&'
ESCAPED = "&lt;b class=&quot;x&quot;&gt;&amp;"
NOW = datetime(2026, 7, 1, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (None, "-"),
        (timedelta(), "0 ms"),
        (timedelta(seconds=-5), "0 ms"),
        (timedelta(microseconds=999), "0 ms"),
        (timedelta(microseconds=999_999), "999 ms"),
        (timedelta(seconds=1), "1.0 s"),
        (timedelta(seconds=1.29), "1.2 s"),
        (timedelta(seconds=9.99), "9.9 s"),
        (timedelta(seconds=10), "10 s"),
        (timedelta(seconds=59.9), "59 s"),
        (timedelta(minutes=1), "1 min 0 s"),
        (timedelta(minutes=59, seconds=59.9), "59 min 59 s"),
        (timedelta(hours=1), "1 h 0 min"),
        (timedelta(hours=23, minutes=59, seconds=59), "23 h 59 min"),
        (timedelta(days=1), "1 d 0 h"),
        (timedelta(days=400, hours=23.9), "400 d 23 h"),
    ],
)
def test_a_duration_has_two_units_at_most_on_one_line(length: timedelta | None, shown: str) -> None:
    assert duration(length) == shown.replace(" ", "\xa0")


def test_a_distance_is_before_or_behind_us() -> None:
    assert distance(NOW + timedelta(minutes=5), NOW) == "in 5\xa0min\xa00\xa0s"
    assert distance(NOW - timedelta(hours=2), NOW) == "2\xa0h\xa00\xa0min ago"
    assert distance(NOW, NOW) == "0\xa0ms ago"


def test_a_moment_has_both_its_distance_and_its_time() -> None:
    assert moment(None, NOW) == "-"
    assert moment(NOW, NOW) == (
        '0\xa0ms ago<span class="singlejob-note">'
        '<time datetime="2026-07-01T10:00:00+00:00">2026-07-01 10:00 UTC</time></span>'
    )
    assert "2026-07-01 19:00 JST" in moment(NOW, NOW, ZoneInfo("Asia/Tokyo"))


def test_the_clock_shows_seconds_where_there_are_any() -> None:
    assert ">2026-07-01 10:00 UTC<" in clock_time(NOW)
    assert ">2026-07-01 10:00:07 UTC<" in clock_time(NOW + timedelta(seconds=7))
    assert ">2026-07-01 12:00 CEST<" in clock_time(NOW, ZoneInfo("Europe/Rome"))
    assert ">2027-01-01 11:00 CET<" in clock_time(datetime(2027, 1, 1, 10, tzinfo=UTC), ZoneInfo("Europe/Rome"))


def test_everything_is_escaped() -> None:
    assert badge(HOSTILE, HOSTILE) == f'<span class="singlejob-badge singlejob-quiet">{ESCAPED}</span>'
    assert noted(HOSTILE, HOSTILE) == f'{ESCAPED}<span class="singlejob-note">{ESCAPED}</span>'
    assert noted(HOSTILE, "") == ESCAPED
    assert cells.preformatted(HOSTILE) == f'<pre class="singlejob-text" tabindex="0">{ESCAPED}</pre>'
    assert cells.preformatted("") == "-"
    assert f">{ESCAPED}</a>" in link("joblock", HOSTILE, HOSTILE)
    assert HOSTILE not in link("joblock", HOSTILE, HOSTILE)


def test_but_not_twice() -> None:
    assert noted(badge("stale", "<"), format_html("<i>{}</i>", "<")) == (
        '<span class="singlejob-badge singlejob-bad">&lt;</span><span class="singlejob-note"><i>&lt;</i></span>'
    )


def test_a_link_leads_to_the_row() -> None:
    assert link("jobrun", 7, "#7") == '<a href="/admin/django_singlejob/jobrun/7/change/">#7</a>'
    assert "/jobstatus/a_3Ab_5F24/change/" in link("jobstatus", "a:b_24", "")


def test_of_an_error_the_first_line_is_shown_as_far_as_it_fits() -> None:
    assert first_line("") == first_line(" \n ") == ""
    assert first_line("\n Oh no \nand more") == "Oh no "
    assert first_line("x" * 120) == "x" * 120
    assert first_line("x" * 121) == "x" * 119 + "…"


def test_each_state_has_a_tone() -> None:
    values = {*State.values, *JobRun.Status.values, *OneOffJob.Status.values, "held"}
    values |= {level.name.lower() for level in Level if level}
    assert values - cells.TONES.keys() == {"hidden", "idle", "waiting", "cancelled", "skipped"}
    assert cells.TONES.keys() <= values
    assert {cells.tone(value) for value in values} == {"good", "busy", "warn", "bad", "quiet"}


def whole(text: str) -> str:
    return f'<span class="singlejob-whole">{text}</span>'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("import_catalogue", "import_|catalogue"),
        ("SMTPServerDisconnected: timed out", "SMTPServer|Disconnected: timed out"),
        ("web-1.example.com", "web-|1.|example.|com"),
        ("nightly", "nightly"),
        ("a" * 40, f"{'a' * 16}|{'a' * 16}|{'a' * 8}"),
        (" two  words ", " two  words "),
        ("worker --lease-time -t 4-5", f"worker {whole('--l')}ease-|time {whole('-t')} 4-|5"),
        ("x --<b> -", "x --&lt;b&gt; -"),
        ("", ""),
        ("<b>_\u202e", "&lt;b&gt;_\\u202e"),
    ],
)
def test_a_line_ends_between_the_parts_of_a_word(text: str, shown: str) -> None:
    assert format_html("{}", breakable(text)) == shown.replace("|", "<wbr>")


def test_what_a_narrow_list_adds_is_only_what_there_is() -> None:
    assert narrow("a", "-", "", None) == "a"
    assert narrow("<a>", "<b>") == '&lt;a&gt;<span class="singlejob-note singlejob-narrow">&lt;b&gt;</span>'
