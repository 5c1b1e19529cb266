"""``pause_singletons`` and ``resume_singletons``: what they change, what they say, and their exit status."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_singlejob import SKIPPED, Reason, job_lock, singleton_job
from django_singlejob.management import pause_or_resume
from django_singlejob.management.exit_status import EX_TEMPFAIL, EX_USAGE
from django_singlejob.models.jobs import gates
from django_singlejob.models.one_offs import one_offs
from tests.contract.acts import closing, start_run, ticked
from tests.waiting import PATIENCE

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]


def told(command: str, *names: str, **options: Any) -> tuple[int, str, str]:
    """The exit status, and what is written to standard output and to standard error."""
    out, err = StringIO(), StringIO()
    try:
        call_command(command, *names, stdout=out, stderr=err, no_color=True, **options)
    except SystemExit as done:
        return int(str(done.code)), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


def pause(*names: str, **options: Any) -> tuple[int, str, str]:
    return told("pause_singletons", *names, **options)


def resume(*names: str, **options: Any) -> tuple[int, str, str]:
    return told("resume_singletons", *names, **options)


def paused() -> set[str]:
    return set(gates().filter(paused=True).values_list("name", flat=True))


@pytest.fixture
def job(fresh_process: None) -> Any:
    return singleton_job("nightly")(lambda: None)


def test_a_job_is_paused_and_resumed(job: Any) -> None:
    job()
    assert pause("nightly") == (0, "Paused 'nightly'.\n", "")
    assert job() is SKIPPED
    assert pause("nightly") == (0, "'nightly' was already paused.\n", "")
    assert resume("nightly") == (0, "Resumed 'nightly'.\n", "")
    assert job() is None
    assert resume("nightly") == (0, "'nightly' was not paused.\n", "")


@pytest.mark.usefixtures("job")
def test_a_job_that_never_ran_gets_its_row() -> None:
    assert pause("nightly") == (0, "Paused 'nightly'.\n", "")
    assert paused() == {"nightly"}


def test_its_one_offs_wait(job: Any) -> None:
    job.enqueue()
    pause("nightly")
    assert [report.reason for report in ticked()] == [Reason.PAUSED]
    assert one_offs().get().status == "waiting"
    resume("nightly")
    assert [report.name for report in ticked()] == ["nightly"]
    assert one_offs().get().status == "done"


@pytest.mark.usefixtures("job")
def test_a_job_that_another_release_has_is_paused() -> None:
    start_run("elsewhere")
    assert pause("elsewhere", "nightly", "elsewhere") == (0, "Paused 'elsewhere'.\nPaused 'nightly'.\n", "")


@pytest.mark.usefixtures("job")
def test_a_paused_job_that_never_ran_and_is_gone_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    pause("nightly")
    monkeypatch.setattr("django_singlejob.jobs.registry._jobs", {})
    assert resume("nightly") == (0, "Resumed 'nightly'.\n", "")


@pytest.mark.usefixtures("job")
def test_a_name_that_nobody_knows_is_an_error_and_the_others_are_paused() -> None:
    status, out, err = pause("nihgtly", "nightly")
    assert (status, out) == (EX_USAGE, "Paused 'nightly'.\n")
    assert err == "'nihgtly' was not paused: no job has this name. Did you mean 'nightly'?\n"
    assert paused() == {"nightly"}
    assert not gates().filter(name="nihgtly").exists()
    assert resume("other")[2] == "'other' was not resumed: no job has this name. singleton_status lists the jobs.\n"


def test_all_are_all_jobs_and_no_mere_locks(job: Any) -> None:
    start_run("elsewhere")
    with job_lock("merely"):
        pass
    said = "Paused 'elsewhere'.\nPaused 'nightly'.\n"
    assert pause("--all") == (0, f"{said}Tasks that are not jobs are not paused.\n", "")
    assert paused() == {"elsewhere", "nightly"}
    assert pause("merely")[0] == EX_USAGE
    assert resume("--all")[1] == "Resumed 'elsewhere'.\nResumed 'nightly'.\n"
    assert paused() == set()


@pytest.mark.usefixtures("job")
def test_all_leave_what_was_paused_by_its_name() -> None:
    singleton_job("hourly")(lambda: None)
    pause("nightly", because="the supplier is down")
    before = pauses()["nightly"]
    assert pause("--all", because="a deploy")[1].startswith("Paused 'hourly'.\n'nightly' was already paused.\n")
    assert pauses()["nightly"] == before
    # Its own pauses can be changed.
    assert pause("--all", because="a long deploy")[1].startswith("Paused 'hourly'.\n'nightly' was already paused.\n")
    status, out, _ = resume("--all")
    assert (status, paused()) == (0, {"nightly"})
    assert out == (
        "Resumed 'hourly'.\n'nightly' was not paused with --all.\n"
        "Still paused, because they were not paused with --all: nightly. Resume them by name.\n"
    )
    assert resume("nightly")[1] == "Resumed 'nightly'.\n"


@pytest.mark.usefixtures("job")
def test_with_all_it_is_said_which_of_these_end_before() -> None:
    pause("nightly", until="2999-12-01T05:00:00+00:00")
    words = "Paused by name, these resume by themselves before that: nightly.\n"
    assert words in pause("--all")[1]
    assert words in pause("--all", until="2999-12-01T06:00:00+00:00")[1]
    assert words not in pause("--all", until="2999-12-01T04:00:00+00:00")[1]


@pytest.mark.usefixtures("job")
def test_who_pauses_by_its_name_what_was_paused_with_all_has_it_paused() -> None:
    pause("--all")
    assert pause("nightly") == (0, "Paused 'nightly'.\n", "")
    resume("--all")
    assert paused() == {"nightly"}


@pytest.mark.parametrize("command", ["pause_singletons", "resume_singletons"])
@pytest.mark.parametrize("words", [[], ["nightly", "--all"]], ids=str)
def test_a_name_or_all_is_needed_and_not_both(command: str, words: list[str]) -> None:
    with pytest.raises(CommandError, match="Name the jobs, or use --all"):
        call_command(command, *words)


@pytest.mark.usefixtures("job")
def test_it_can_be_quiet() -> None:
    assert pause("nightly", verbosity=0) == (0, "", "")
    assert pause("nightly", verbosity=0, format="json") == (0, "", "")
    status, out, err = pause("other", verbosity=0)
    assert (status, out) == (EX_USAGE, "")
    assert "'other' was not paused" in err


@pytest.mark.usefixtures("job")
def test_json_has_it_all() -> None:
    status, out, err = pause("nightly", "other", format="json")
    (error,) = (facts := json.loads(out)).pop("errors")
    assert (status, facts) == (EX_USAGE, {"paused": ["nightly"], "unchanged": []})
    assert (error["name"], error["reason"], f"{error['message']}\n") == ("other", "unknown", err)
    assert json.loads(pause("nightly", format="json")[1]) == {"paused": [], "unchanged": ["nightly"], "errors": []}
    assert json.loads(resume("nightly", format="json")[1])["resumed"] == ["nightly"]


@pytest.mark.on_database("postgresql", "mysql")
@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
@pytest.mark.usefixtures("job")
def test_it_does_not_wait_long_for_a_fenced_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_or_resume, "PATIENCE", 0.2)
    lease = start_run()
    with ThreadPoolExecutor() as pool, lease.atomic():
        status, out, err = pool.submit(closing, pause, "nightly").result(PATIENCE)
    assert (status, out) == (EX_TEMPFAIL, "")
    assert err == "'nightly' was not paused: another transaction is using it. Try again.\n"
    assert paused() == set()
    lease.release()


# --- until, and why


LATER = "2999-12-01T06:00:00+00:00"


def pauses() -> dict[str, list[object]]:
    rows = gates().filter(paused=True).values_list("name", "paused_until", "pause_reason", "paused_by")
    return {name: [until, reason, by] for name, until, reason, by in rows}


@pytest.mark.usefixtures("job")
def test_it_can_end_by_itself_and_have_a_reason(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    settings.SINGLEJOB = {"HOSTNAME": "web-1"}
    done = pause("nightly", until=LATER, because="upgrade")
    assert done == (0, "Paused 'nightly' until 2999-12-01 06:00:00 UTC.\n", "")
    assert pauses() == {"nightly": [datetime(2999, 12, 1, 6, tzinfo=UTC), "upgrade", "anna on web-1"]}
    assert pause("nightly", until=LATER, because="upgrade")[1] == "'nightly' was already paused.\n"
    assert pause("nightly", because="for longer")[1] == "Paused 'nightly'.\n"
    assert pauses() == {"nightly": [None, "for longer", "anna on web-1"]}
    out = StringIO()
    call_command("run_singleton", "nightly", verbosity=2, stdout=out)
    assert out.getvalue() == "nightly: skipped, paused (for longer).\n"


@pytest.mark.usefixtures("job")
def test_a_user_without_a_name_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.SINGLEJOB = {"HOSTNAME": "web-1"}

    def getuser() -> str:
        raise KeyError("uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", getuser)
    pause("nightly")
    assert pauses() == {"nightly": [None, "", "web-1"]}


@pytest.mark.usefixtures("job")
def test_an_end_in_the_past_is_refused_by_the_databases_clock() -> None:
    with pytest.raises(CommandError, match="--until is 2001-12-01 06:00:00 UTC, but by the database's clock") as error:
        pause("nightly", until="2001-12-01T06:00Z")
    assert error.value.returncode == EX_USAGE
    assert paused() == set()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"until": "tomorrow"}, "is not an instant, such as"),
        ({"because": " "}, "is blank"),
        ({"because": "x" * 201}, "the reason has 201 characters. Use at most 200."),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        pause("nightly", **options)
