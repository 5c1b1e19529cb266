from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import translation

from django_singlejob.scheduling.schedule import parse
from django_singlejob.scheduling.words import schedule_in_words

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
        ("* * * * *", "Jede Minute", "Cada minuto"),
        ("*/5 * * * *", "Alle 5 Minuten", "Cada 5 minutos"),
        ("@hourly", "Jede Stunde zur Minute 0", "Cada hora, en el minuto 0"),
        ("0 3 * * *", "Jeden Tag um 03:00", "Cada día a las 03:00"),
        ("0 8 * * 1-5", "Montag bis Freitag um 08:00", "De lunes a viernes a las 08:00"),
        ("15 8 * * 1", "Jeden Montag um 08:15", "Cada lunes a las 08:15"),
        ("@weekly", "Jeden Sonntag um 00:00", "Cada domingo a las 00:00"),
        ("0 3 * * 7", "Jeden Sonntag um 03:00", "Cada domingo a las 03:00"),
        ("@monthly", "Jeden Monat am 1. um 00:00", "El día 1 de cada mes a las 00:00"),
    ],
)
def test_it_is_in_the_language_of_the_user(schedule: str | timedelta, german: str, spanish: str) -> None:
    zone = "" if isinstance(schedule, timedelta) else " (Europe/Rome)"
    for language, words in {"de": german, "de-at": german, "es": spanish}.items():
        with translation.override(language):
            assert schedule_in_words(parse(schedule, ROME)) == f"{words}{zone}"


@pytest.mark.parametrize(
    "expression", ["*/7 * * * *", "0 3 1 1 *", "0 3 L * *", "0-5 * * * *", "0 3 * * 1,3", "0 */2 * * *"]
)
def test_an_expression_without_words_is_shown_as_it_is(expression: str) -> None:
    with translation.override("de"):
        assert schedule_in_words(parse(expression, ROME)) == f"{expression} (Europe/Rome)"


def test_so_is_any_in_a_language_without_a_translation() -> None:
    with translation.override("fi"):
        assert schedule_in_words(parse("0 3 * * 0", ROME)) == "0 3 * * 0 (Europe/Rome)"
