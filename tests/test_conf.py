from __future__ import annotations

import sys
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_singlejob import conf
from django_singlejob.conf import Options, options, problems

if TYPE_CHECKING:
    from pytest_django import Settings

SECOND = timedelta(seconds=1)
NEGATIVE = timedelta(microseconds=-1)

DEFAULTS = {
    "ENABLED": True,
    "DATABASE": None,
    "LEASE": timedelta(seconds=60),
    "HEARTBEATS_PER_LEASE": 6,
    "MIN_INTERVAL": timedelta(seconds=30),
    "SLOT_TOLERANCE": timedelta(seconds=30),
    "OVERRUN_FACTOR": 3.0,
    "HISTORY_DAYS": 30,
    "HISTORY_KEEP": 1000,
    "OUTPUT": 10_000,
    "OUTPUT_FILE": None,
    "RUNS_PER_PROCESS": 1000,
    "RECORD_COMMAND": "name",
    "AUTODISCOVER": ("jobs", "tasks"),
    "SINGLE_STATEMENT": False,
    "HOSTNAME": None,
    "RELEASE": None,
    "PING_URL": None,
    "NOTIFY": (),
    "ADMIN_URL": None,
    "HEALTH_TOKEN": None,
}
OTHERS = {
    "ENABLED": False,
    "DATABASE": "other",
    "LEASE": SECOND,
    "HEARTBEATS_PER_LEASE": 4,
    "MIN_INTERVAL": timedelta(),
    "SLOT_TOLERANCE": timedelta(),
    "OVERRUN_FACTOR": 2,
    "HISTORY_DAYS": 0,
    "HISTORY_KEEP": 0,
    "OUTPUT": 0,
    "OUTPUT_FILE": "/var/log/shop/{name}.log",
    "RUNS_PER_PROCESS": 1,
    "RECORD_COMMAND": "shop.holders.command",
    "AUTODISCOVER": ["jobs", "reports.nightly"],
    "SINGLE_STATEMENT": True,
    "HOSTNAME": "web-1",
    "RELEASE": "2026.11",
    "PING_URL": "https://pings.example.org/secret/{name}?create=1",
    "NOTIFY": ["ops@shop.example"],
    "ADMIN_URL": "https://shop.example/admin/",
    "HEALTH_TOKEN": "s3cret",
}
IMPOSSIBLE: dict[str, list[object]] = {
    "ENABLED": ["False", "", 0, 1, None],
    "DATABASE": ["", 1],
    "LEASE": [timedelta(), timedelta(microseconds=1), timedelta(seconds=0.49), NEGATIVE, 60, None],
    "HEARTBEATS_PER_LEASE": [3, -6, 6.0, True, None],
    "MIN_INTERVAL": [NEGATIVE, 30, None],
    "SLOT_TOLERANCE": [NEGATIVE, 30, None],
    "OVERRUN_FACTOR": [1, 0.5, "3", float("nan"), None, float("inf"), 10**400],
    "HISTORY_DAYS": [-1, timedelta(days=30)],
    "HISTORY_KEEP": [-1, None, 2**31, sys.maxsize],
    "OUTPUT": [-1, None, "10000", True, 1_000_001],
    "OUTPUT_FILE": [
        "/var/log/{nam}.log",
        "/var/log/{name",
        "",
        "shop.log",
        b"/shop.log",
        1,
        "/shop\n.log",
        ["/shop.log"],
    ],
    "RUNS_PER_PROCESS": [0, -1, None, "1", True, 2**31],
    "RECORD_COMMAND": ["everything", "full", "", None, ["name"], "full.", "shop. command", 1],
    "AUTODISCOVER": ["jobs", None, [1], ["jobs.py "], ["jobs/nightly"], {"jobs"}],
    "SINGLE_STATEMENT": [1, "True", None],
    "HOSTNAME": ["", 1],
    "RELEASE": ["", 1],
    "PING_URL": [
        "",
        1,
        "pings.example.org/{name}",
        "ftp://pings.example.org/{name}",
        "file:///{name}",
        "https:///{name}",
        "https://pings.example.org/all",
        "https://me:secret@pings.example.org/{name}",
        "https://pings.example.org:port/{name}",
        "https://[pings/{name}",
        "https://pings.example.org/ä/{name}",
        "https://pings.example.org/{name}\n",
        "https://pings.example.org/a job/{name}",
    ],
    "NOTIFY": ["nobody", ["a@b.example", 7], "a@b.example, c@d.example", None, {"a@b.example"}],
    "ADMIN_URL": ["", "shop.example/admin/", 7],
    "HEALTH_TOKEN": ["", b"s3cret", 1, " s3cret", "s3cret\n", "s3 cret", "s\u00e9cret"],
}


def as_options(given: dict[str, Any]) -> Options:
    return Options(**{key.lower(): value for key, value in given.items()})


def test_without_the_setting_the_defaults_count(settings: Settings) -> None:
    del settings.SINGLEJOB
    assert options() == as_options(DEFAULTS)
    assert tuple(DEFAULTS) == tuple(conf.KEYS)


@pytest.mark.parametrize("key", DEFAULTS)
def test_one_key_is_given_and_the_others_keep_their_defaults(settings: Settings, key: str) -> None:
    settings.SINGLEJOB = {key: OTHERS[key]}
    assert options() == as_options(DEFAULTS | {key: OTHERS[key]})


def test_the_setting_is_read_at_each_use(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASE": SECOND}
    before = options().lease
    settings.SINGLEJOB["LEASE"] = 2 * SECOND
    assert (before, options().lease) == (SECOND, 2 * SECOND)


def test_what_equals_a_valid_value_is_not_taken_for_it(settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_KEEP": 1}
    assert options().history_keep == 1
    settings.SINGLEJOB["HISTORY_KEEP"] = True
    with pytest.raises(ImproperlyConfigured):
        options()


def test_it_is_validated_only_when_it_has_changed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def note(given: object) -> list[Any]:
        seen.append(given)
        return []

    seen: list[object] = []
    monkeypatch.setattr(conf, "problems", note)
    # Not SECOND itself: what another test had validated last is not validated again.
    both = [{"LEASE": 2 * SECOND}, {"LEASE": 3 * SECOND}]
    for given in both:
        settings.SINGLEJOB = given
        assert options() is options()
    assert seen == both


def test_what_was_refused_is_refused_again_and_what_comes_back_counts_again(settings: Settings) -> None:
    for given, lease in [({"LEASE": SECOND}, SECOND), ({}, DEFAULTS["LEASE"]), ({"LEASE": SECOND}, SECOND)]:
        settings.SINGLEJOB = given
        assert options().lease == lease
    settings.SINGLEJOB = {"LEASE": 60}
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured):
            options()


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in IMPOSSIBLE.items() for value in values])
def test_a_value_that_cannot_work_is_refused_with_what_it_must_be(settings: Settings, key: str, value: object) -> None:
    settings.SINGLEJOB = OTHERS | {key: value}
    with pytest.raises(ImproperlyConfigured) as refusal:
        options()
    is_secret = key in ("HEALTH_TOKEN", "PING_URL")
    told = f"of the type {type(value).__name__}" if is_secret else f"{value!r:.64}"
    assert str(refusal.value).startswith(f"SINGLEJOB[{key!r}] is {told}")
    assert ", but must be " in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_the_message_for_a_large_number_says_the_most(settings: Settings) -> None:
    settings.SINGLEJOB = {"HISTORY_KEEP": sys.maxsize}
    with pytest.raises(ImproperlyConfigured, match="a whole number of runs, 0 or more, and 2147483647 at most"):
        options()


@pytest.mark.parametrize("given", [None, [], "LEASE", 60, MappingProxyType({"LEASE": SECOND})])
def test_what_is_no_dict_is_refused(settings: Settings, given: object) -> None:
    settings.SINGLEJOB = given
    told = f"SINGLEJOB is of the type {type(given).__name__}, but must be a dict."  # a secret may be among it
    with pytest.raises(ImproperlyConfigured, match=told):
        options()


def test_an_unknown_key_is_the_system_checks_business(settings: Settings) -> None:
    settings.SINGLEJOB = {"LEASES": SECOND, "HOSTNAME": "web-1"}
    assert options().hostname == "web-1"
    [(key, problem)] = problems(settings.SINGLEJOB)
    assert key == "LEASES"
    assert problem.startswith("SINGLEJOB contains the unknown key 'LEASES'. The valid keys are: ENABLED, DATABASE, ")


def test_local_time_is_refused(settings: Settings) -> None:
    settings.USE_TZ = False
    with pytest.raises(ImproperlyConfigured, match=r"^USE_TZ is False, .+ Set USE_TZ = True\.$"):
        options()
