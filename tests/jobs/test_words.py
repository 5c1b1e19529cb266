from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import translation

from django_singlejob.jobs.schedule import parse
from django_singlejob.jobs.words import schedule_in_words

ROME = "Europe/Rome"
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("0 8 * * 1-5", "At 08:00 on Monday through Friday (Europe/Rome)"),
        ("@hourly", "At the start of every hour (Europe/Rome)"),
        ("30 2 * * *", "At 02:30 every day (Europe/Rome)"),
        (90 * MINUTE, "Every 1 hour 30 minutes"),
        (DAY, "Every 1 day"),
        (timedelta(microseconds=1_000_002), "Every 1 second 2 microseconds"),
    ],
)
def test_a_schedule_in_words(schedule: str | timedelta, words: str) -> None:
    assert schedule_in_words(parse(schedule, ROME)) == words


@pytest.mark.parametrize(
    ("schedule", "german", "spanish"),
    [
        (DAY, "Jeden Tag", "Cada día"),
        (HOUR, "Jede Stunde", "Cada hora"),
        (5 * MINUTE, "Alle 5 Minuten", "Cada 5 minutos"),
        (30 * timedelta(seconds=1), "Alle 30 Sekunden", "Cada 30 segundos"),
        (90 * MINUTE, "Alle 1 Stunde 30 Minuten", "Cada 1 hora 30 minutos"),
        (timedelta(milliseconds=250), "Alle 250 Millisekunden", "Cada 250 milisegundos"),
    ],
)
def test_an_interval_is_in_the_language_of_the_user(schedule: timedelta, german: str, spanish: str) -> None:
    for language, words in {"de": german, "de-at": german, "es": spanish}.items():
        with translation.override(language):
            assert schedule_in_words(parse(schedule)) == words


@pytest.mark.parametrize("language", ["de", "fi"])
def test_a_cron_expression_is_in_words_only_in_english(language: str) -> None:
    with translation.override(language):
        assert schedule_in_words(parse("0 3 * * 0", ROME)) == "0 3 * * 0 (Europe/Rome)"
    with translation.override("en-gb"):
        assert schedule_in_words(parse("0 3 * * 0", ROME)) == "At 03:00 on Sunday (Europe/Rome)"
