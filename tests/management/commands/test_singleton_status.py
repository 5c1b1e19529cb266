from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import translation

from django_singlejob import singleton_job
from django_singlejob.jobs import registry
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import ending
from django_singlejob.models import OneOffJob
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.one_offs import one_offs
from django_singlejob.monitoring.marks import Mark, record
from django_singlejob.process.clock import DBNow, instant_in_words
from django_singlejob.process.holder import this_host, this_process
from django_singlejob.worker.due import follow_code
from tests.contract.acts import everything, expire, gate, lock, start_run, take
from tests.waiting import eventually

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.fixtures import Away

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]
committed = pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

SUCCESS = ending(None, duration=MINUTE, acquire_duration=SECOND)

TITLES = ["JOB", "STATE", "HOLDER", "LAST RUN", "NEXT SLOT"]


def told(*arguments: str, status: int = 0) -> str:
    """The command's standard output. It must exit with that status."""
    output = StringIO()
    with pytest.raises(SystemExit) if status else nullcontext() as ended:
        call_command("singleton_status", *arguments, stdout=output, no_color=True)
    assert ended is None or ended.value.code == status
    return output.getvalue()


def facts(*arguments: str, status: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told("--format", "json", *arguments, status=status))
    return found


def schedule(name: str = "nightly", **settings: Any) -> None:
    """Register the job, and enter it in the database."""
    singleton_job(name, **{"schedule": "30 2 * * *"} | settings)(print)
    follow_code()


def change(name: str = "nightly", **columns: Any) -> None:
    assert gates().filter(name=name).update(**columns) == 1


@pytest.fixture
def trouble(fresh_process: None, db: None) -> None:
    """One job of each kind."""
    for name in "failing", "idle", "overdue", "overrunning", "paused", "stale":
        schedule(name)
        change(name, next_slot=DBNow() + HOUR + 30 * SECOND)
    singleton_job("unseen", schedule="@daily")(print)
    take("block")
    change("failing", consecutive_failures=3)
    change("overdue", next_slot=DBNow() - 2 * DAY - 90 * MINUTE)
    start_run("overrunning")
    locks().filter(name="overrunning").update(acquired_at=DBNow() - 2 * HOUR - 30 * SECOND)
    change("overrunning", mean_duration=MINUTE, run_count=5)
    change("paused", paused=True)
    start_run("stale")
    expire("stale")


# --- the table


def rows(text: str) -> list[list[str]]:
    """The cells of the table: each begins where its title does."""
    _summary, table, *_others = text.split("\n\n")
    titles, *lines = table.splitlines()
    begins = [titles.index(title) for title in TITLES]
    ends = [*begins[1:], None]
    for line in lines:
        assert all(line[begin - 2 : begin].isspace() for begin in begins[1:] if begin <= len(line)), line
        assert line == line.rstrip()
    return [[line[begin:end].strip() for begin, end in zip(begins, ends, strict=True)] for line in lines]


def row(name: str = "nightly") -> dict[str, str]:
    (cells,) = (cells for cells in rows(told()) if cells[0] == name)
    return dict(zip(TITLES, cells, strict=True))


def test_it_does_not_grow_with_what_it_tells_of() -> None:
    for number in range(1_100):
        singleton_job(f"job-{number:04}", schedule="@daily")(print)
    checked, listed = told("--check", status=1), told()
    assert checked.count("\n... and 1000 more: --format json has all of them.\n") == 2
    assert len(checked) < 40_000
    assert len(listed.splitlines()) <= 45
    assert re.search(r"^\.\.\. and \d+ never requested\. singleton_status JOB shows one", listed, re.MULTILINE)
    assert len(facts()["findings"]) == 1_100


def test_thirty_jobs_are_one_screen_the_worst_first() -> None:
    for number in range(30):
        schedule(f"shop.jobs.of_a_long_name_{number:02}")
    names = [f"shop.jobs.of_a_long_name_{number:02}" for number in range(30)]
    assert len(told().splitlines()) <= 45
    for name in names[20:26]:
        change(name, consecutive_failures=2, last_status="failed", last_finished_at=DBNow() - HOUR)
    start_run(names[29])
    enqueue("mail", ago=2 * HOUR, count=3)
    lines = told().splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 100
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("JOB ")) :]
    found = [line.split()[0] for line in table if line.startswith("shop.jobs")]
    assert found[:8] == [*names[20:26], names[29], names[0]]
    shown = "\n".join(lines)
    assert "CRITICAL: The last 2 runs of the job 'shop.jobs.of_a_long_name_20'" in shown
    left_out = re.search(r"^\.\.\. and (\d+) idle\. ", shown, re.MULTILINE)
    assert len(found) + int(left_out[1] if left_out else 0) == 30
    assert "Queues: 1 (3 due). Workers alive: 0. Servers: " in shown


def test_where_there_is_nothing_it_is_well() -> None:
    assert told("--check") == "OK: all is well. Jobs and locks: 0. | due=0 failed=0 workers=0\n"


@pytest.mark.usefixtures("trouble")
def test_the_first_line_says_what_is_wrong_the_worst_first() -> None:
    assert told().startswith(
        "CRITICAL: 1 stale (stale), 1 overdue (overdue), 1 failing (failing), 1 overrunning (overrunning), "
        "1 never requested (unseen). Jobs and locks: 8. | due=0 failed=0 workers=0\n\n"
    )


@pytest.mark.parametrize(("count", "last"), [(10, "job-9)"), (11, "job-9, and 1 more)")])
def test_of_a_kind_no_more_than_ten_are_named(count: int, last: str) -> None:
    for number in range(count):
        singleton_job(f"job-{number:x}", schedule="@daily")(print)
    summary = told().splitlines()[0]
    assert summary.startswith(f"WARNING: {count} never requested (job-0, ")
    assert f"{last}. Jobs and locks: " in summary


@pytest.mark.usefixtures("trouble")
def test_each_job_has_a_line_of_its_own_the_worst_first() -> None:
    assert [cells[:2] for cells in rows(told())] == [
        ["failing", "failing"],
        ["overdue", "overdue"],
        ["stale", "stale"],
        ["overrunning", "overrunning"],
        ["unseen", "never requested"],
        ["block", "running"],
        ["idle", "idle"],
        ["paused", "paused"],
    ]


def test_a_job_that_is_hidden_is_left_out_unless_it_is_named() -> None:
    start_run("mistyped").release()
    change("mistyped", consecutive_failures=1)
    assert told("--check", status=2).startswith("CRITICAL: 1 failing (mistyped). ")
    assert gates().hide("mistyped")
    assert told("--check").startswith("OK: all is well. Jobs and locks: 0. ")
    assert [cells[:2] for cells in rows(told("--job", "mistyped"))] == [["mistyped", "hidden"]]


@pytest.mark.usefixtures("trouble")
def test_it_says_who_holds_a_lock_and_for_how_long() -> None:
    assert row("overrunning")["HOLDER"] == f"{lock('overrunning').holder} for 2 hours"
    assert row("idle")["HOLDER"] == ""


@pytest.mark.usefixtures("trouble")
def test_it_says_when_a_slot_is_due_or_was() -> None:
    def instant(name: str) -> str:
        return f"{gate(name).next_slot:%Y-%m-%d %H:%M:%S} UTC"

    assert row("idle")["NEXT SLOT"] == f"{instant('idle')}, in 1 hour"
    assert row("overdue")["NEXT SLOT"] == f"{instant('overdue')}, 2 days 1 hour ago"
    assert row("unseen")["NEXT SLOT"] == ""


def test_it_says_how_the_last_run_ended_and_how_long_ago() -> None:
    schedule()
    assert row()["LAST RUN"] == ""
    change(last_status="failed", last_finished_at=DBNow() - 2 * DAY - 3 * HOUR - 59 * MINUTE)
    assert row()["LAST RUN"] == "failed 2 days 3 hours ago"


def test_when_a_holder_died_nobody_knows() -> None:
    schedule()
    start_run().finish(SUCCESS)
    start_run()
    expire()
    assert clear(lock())
    assert gate().last_finished_at
    assert row()["LAST RUN"] == "abandoned"
    start_run()
    assert row()["LAST RUN"] == ""


# --- JSON


@pytest.mark.usefixtures("trouble")
def test_json_has_the_level_of_all_and_of_each() -> None:
    found = facts()
    assert found["level"] == "critical"
    assert {job["name"]: (job["state"], job["level"]) for job in found["jobs"]} == {
        "block": ("running", "ok"),
        "failing": ("failing", "critical"),
        "idle": ("idle", "ok"),
        "overdue": ("overdue", "critical"),
        "overrunning": ("overrunning", "warning"),
        "paused": ("paused", "ok"),
        "stale": ("stale", "critical"),
        "unseen": ("unseen", "warning"),
    }


def test_json_has_instants_as_text_and_durations_as_seconds() -> None:
    schedule(time_zone="Europe/Rome")
    start_run().finish(SUCCESS)
    start_run()
    change(
        mean_duration=1.5 * MINUTE, consecutive_failures=2, misfire_count=3, coalesced_count=5, last_slot=DBNow() - DAY
    )
    (job,) = facts()["jobs"]
    status, held = gate(), lock()
    assert job["holder"].pop("age") == pytest.approx(0, abs=30)
    assert job == {
        "name": "nightly",
        "is_job": True,
        "state": "failing",
        "level": "critical",
        "schedule": "At 02:30 every day (Europe/Rome)",
        "next_slot": iso(status.next_slot),
        "last_slot": iso(status.last_slot),
        "paused": False,
        "paused_until": None,
        "pause_reason": None,
        "paused_by": None,
        "last_started_at": iso(status.last_started_at),
        "last_finished_at": iso(status.last_finished_at),
        "last_success_at": iso(status.last_finished_at),
        "last_status": "successful",
        "last_error": None,
        "last_duration": None,
        "consecutive_failures": 2,
        "run_count": 1,
        "mean_duration": 90.0,
        "misfire_count": 3,
        "coalesced_count": 5,
        "holder": {
            "name": "nightly",
            "hostname": held.hostname,
            "pid": held.pid,
            "command": held.command,
            "acquired_at": iso(held.acquired_at),
            "heartbeat_at": iso(held.heartbeat_at),
            "expires_at": iso(held.expires_at),
            "slot": None,
            "attempt": 1,
            "stopped_by": "",
            "progress": {"done": None, "total": None, "text": "", "line": ""},
        },
    }
    assert datetime.fromisoformat(job["next_slot"]).utcoffset() == timedelta()


def test_how_far_runs_are_has_a_column_if_any_tells() -> None:
    for name in "nightly", "silent":
        start_run(name)
    assert "PROGRESS" not in told()
    locks().filter(name="nightly").update(
        progress={"done": 120, "total": 500, "text": "importing", "output": "row 120"}
    )
    found = told()
    begin = next(line for line in found.splitlines() if line.startswith("JOB")).index("PROGRESS")
    shown = {line.split()[0]: line[begin:].split("  ")[0].strip() for line in found.splitlines() if " for " in line}
    assert shown == {"nightly": "24 % importing", "silent": ""}
    progress = {job["name"]: job["holder"]["progress"] for job in facts()["jobs"]}
    assert progress["nightly"] == {"done": 120, "total": 500, "text": "importing", "line": "row 120"}
    locks().update(progress={"output": "row\u202e 120 | x"})
    assert r"row\u202e 120 \x7c x" in told()


def iso(instant: datetime | None) -> str:
    assert instant
    return instant.astimezone(UTC).isoformat()


def test_json_has_null_for_what_nobody_knows() -> None:
    singleton_job("nightly", schedule="@daily")(print)
    (job,) = facts()["jobs"]
    named = {key: job.pop(key) for key in ("name", "is_job", "state", "level", "schedule")}
    assert named == {
        "name": "nightly",
        "is_job": True,
        "state": "unseen",
        "level": "warning",
        "schedule": "At 00:00 every day (UTC)",
    }
    assert job.pop("run_count") == 0
    assert {*job.values()} == {None}


def test_json_without_jobs_is_json() -> None:
    nothing: dict[str, Any] = {"findings": [], "jobs": [], "queues": [], "workers": [], "servers": []}
    assert facts("--check") == {"version": 1, "level": "ok", "enabled": True, "is_cut": False, **nothing}


# --- queues and workers


def enqueue(queue: str = "default", *, ago: timedelta = timedelta(), count: int = 1, **columns: Any) -> None:
    """One-offs that have been due for that long."""
    facts: dict[str, Any] = {"task_path": "shop.tasks.mail", "queue_name": queue, "created_at": DBNow()}
    one_offs().bulk_create(OneOffJob(**facts | {"run_after": DBNow() - ago} | columns) for _ in range(count))


@pytest.fixture
def busy(fresh_process: None, db: None) -> None:
    """One job, three queues, three workers."""
    schedule()
    enqueue("mail", ago=2 * HOUR + 20 * SECOND, count=50)
    enqueue(ago=MINUTE + SECOND / 2)
    enqueue(status="failed", count=2, finished_at=DBNow() - MINUTE)
    enqueue(status="done", count=3, finished_at=DBNow() - MINUTE)
    take("django_singlejob.worker.1", queues=["default", "media"])
    take("django_singlejob.worker.2", queues=["default"])
    expire("django_singlejob.worker.2")
    record(Mark(this_process(), ["default"], release="2.1"))


@pytest.mark.usefixtures("busy")
def test_below_the_jobs_are_the_queues_the_workers_and_what_to_do() -> None:
    summary, jobs, queues, workers, servers, advice = told().rstrip("\n").split("\n\n")
    assert summary == (
        "CRITICAL: 1 unserved (queue mail), 1 dead (worker django_singlejob.worker.2), "
        "1 failed lately (queue default). Jobs and locks: 1. | due=51 failed=2 workers=2"
    )
    assert [line.split()[0] for line in jobs.splitlines()] == ["JOB", "nightly"]
    assert [re.split("  +", re.sub(r"(?<=minute) \d+ seconds?", "", line)) for line in queues.splitlines()] == [
        ["QUEUE", "DUE", "OLDEST", "FAILED LATELY", "WORKERS"],
        ["default", "1", "1 minute", "2 of 5", "2"],
        ["mail", "50", "2 hours", "0", "0"],
        ["media", "0", "0", "1"],
    ]
    alive, dead = lock("django_singlejob.worker.1"), lock("django_singlejob.worker.2")
    assert [re.split("  +", line) for line in workers.splitlines()] == [
        ["WORKER", "QUEUES", "STATE", "LAST SEEN"],
        [alive.holder, "default, media", "alive", instant_in_words(alive.heartbeat_at)],
        [dead.holder, "default", "dead", instant_in_words(dead.heartbeat_at)],
    ]
    assert [re.split("  +", re.sub(r"\d+ seconds? ago", "now", line)) for line in servers.splitlines()] == [
        ["SERVER", "QUEUES", "ASKS", "LAST SEEN", "RELEASE", "CLOCK"],
        [this_host(), "default", "by passes", "now", "2.1"],
    ]
    assert advice.splitlines()[0] == (
        "CRITICAL: 50 one-offs are due in the queue 'mail', the oldest for 2 hours. No live worker serves this queue. "
        "Start singleton_worker --queue mail. If the name is mistyped, fix it in the code, cancel the one-offs, and "
        "enqueue them again."
    )
    assert [line.partition(":")[0] for line in advice.splitlines()] == ["CRITICAL", "WARNING", "WARNING"]


@pytest.mark.usefixtures("busy")
def test_json_has_them_too() -> None:
    found = facts()
    default, mail, media = found["queues"]
    assert default.pop("oldest") == pytest.approx(60, abs=30)
    assert default == {"name": "default", "due": 1, "failed": 2, "finished": 5, "workers": 2}
    assert (mail["due"], mail["oldest"] // 60, mail["workers"]) == (50, 120, 0)
    assert media == {"name": "media", "due": 0, "oldest": None, "failed": 0, "finished": 0, "workers": 1}
    worker = lock("django_singlejob.worker.1")
    assert found["workers"][0] == {
        "holder": worker.holder,
        "queues": ["default", "media"],
        "seen_at": iso(worker.heartbeat_at),
        "is_once": False,
        "is_live": True,
    }
    assert [(worker["is_once"], worker["is_live"]) for worker in found["workers"][1:]] == [(False, False), (True, True)]
    assert found["findings"][2] == {
        "kind": "failed",
        "level": "warning",
        "about": "queue",
        "subject": "default",
        "since": None,
        "message": "2 of 5 one-offs of the queue 'default' that finished in the last hour failed.",
        "remedy": "Look for their errors in the admin's list of one-offs, fix them, and retry the one-offs.",
        "acknowledged_by": "",
        "acknowledged_until": None,
    }


def test_what_the_database_has_forges_no_line() -> None:
    enqueue("mail\nOK: all is well\x1b[2J | due=0", ago=HOUR)
    take("block")
    locks().update(hostname="web\nOK: all is well\x1b[2J")
    text = told("--check", status=2)
    first, *others = text.splitlines()
    assert first == (
        r"CRITICAL: 1 without any worker (queue mail\nOK: all is well\x1b[2J \x7c due=0). Jobs and locks: 1. "
        "| due=1 failed=0 workers=0"
    )
    assert not [line for line in others if line.startswith("OK")]
    assert "\x1b" not in text


# --- a part of everything


@pytest.fixture
def several(fresh_process: None, db: None) -> None:
    for name in "hourly", "nightly":
        schedule(name)
    change("nightly", consecutive_failures=2)
    enqueue("mail", ago=HOUR)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("options", "status", "subjects"),
    [
        ([], 2, ["mail", "nightly"]),
        (["--job", "hourly"], 0, []),
        (["--job", "nightly", "--job", "hourly"], 2, ["nightly"]),
        (["--queue", "mail"], 2, ["mail"]),
        (["--queue", "mail", "--job", "nightly"], 2, ["mail", "nightly"]),
        (["--ignore", "mail"], 2, ["nightly"]),
        (["--ignore", "mail", "--ignore", "nightly"], 0, []),
        (["--ignore", "unknown"], 2, ["mail", "nightly"]),
        (["--job", "nightly", "--failures", "2"], 2, ["nightly"]),
        (["--job", "nightly", "--failures", "3"], 1, ["nightly"]),
    ],
    ids=str,
)
def test_only_a_part_is_judged(options: list[str], status: int, subjects: list[str]) -> None:
    found = facts("--check", *options, status=status)
    assert [finding["subject"] for finding in found["findings"]] == subjects


@pytest.mark.usefixtures("several")
def test_only_that_part_is_shown() -> None:
    assert [cells[0] for cells in rows(told("--job", "hourly"))] == ["hourly"]
    assert "QUEUE" not in told("--job", "hourly")
    assert "JOB" not in told("--queue", "mail")
    assert [job["level"] for job in facts("--failures", "3")["jobs"]] == ["ok", "warning"]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (
            "--job",
            "There is no job 'mali': none of that name is registered, has run, or holds a lock. Check the name: ",
        ),
        ("--queue", "There is no queue 'mali': no one-off was enqueued in it, and no live worker serves it by name. "),
    ],
)
def test_an_unknown_name_is_told_with_what_to_do(option: str, problem: str) -> None:
    assert told("--check", option, "mali", status=3).startswith(f"UNKNOWN: {problem}")
    assert facts("--check", option, "mali", status=3)["error"].startswith(problem)
    with pytest.raises(CommandError) as refusal:
        told(option, "mali")
    assert refusal.value.returncode == 2
    assert str(refusal.value).startswith(problem)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_a_number_of_failures_is_1_or_more(number: str) -> None:
    with pytest.raises(CommandError, match=r"argument --failures: '.*' is not a whole number of "):
        told("--failures", number)


def test_call_command_takes_pythons_values() -> None:
    schedule()
    change(consecutive_failures=2)
    output = StringIO()
    call_command("singleton_status", job=["nightly"], ignore="hourly", failures=3, format="json", stdout=output)
    assert json.loads(output.getvalue())["level"] == "warning"


# --- the exit status


@pytest.mark.usefixtures("trouble")
def test_it_is_0_for_whoever_does_not_check() -> None:
    before = everything()
    assert told().startswith("CRITICAL: ")
    assert everything() == before


@committed
def test_it_is_3_when_the_database_is_away(database_away: Away) -> None:
    with database_away():
        assert told("--check", status=3).startswith("UNKNOWN: The database does not answer: ")
        found = facts("--check", status=3)
    assert found["level"] == "unknown"
    assert found["error"].startswith("The database does not answer: ")


@committed
def test_it_is_69_then_for_whoever_does_not_check(database_away: Away) -> None:
    with database_away(), pytest.raises(CommandError, match=r"The database does not answer: .") as refusal:
        told()
    assert refusal.value.returncode == 69


WRONG = [
    ({"HISTORY_DAYS": -1}, r"SINGLEJOB\['HISTORY_DAYS'\] is -1, but must be a whole number of days, 0 or more"),
    ([], "SINGLEJOB is of the type list, but must be a dict"),
]


@pytest.mark.parametrize(("given", "problem"), WRONG, ids=str)
def test_settings_that_cannot_work_are_status_78(settings: Settings, given: object, problem: str) -> None:
    settings.SINGLEJOB = given
    with pytest.raises(CommandError, match=problem) as refusal:
        told()
    assert refusal.value.returncode == 78


@pytest.mark.parametrize("given", [given for given, _ in WRONG], ids=str)
def test_or_3_to_monitoring(settings: Settings, given: object) -> None:
    settings.SINGLEJOB = given
    assert told("--check", status=3).startswith("UNKNOWN: SINGLEJOB")


def test_the_table_is_shown_beside_jobs_that_cannot_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    singleton_job("nightly", schedule="@daily")(print)
    follow_code()
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        monkeypatch.setitem(registry.failures, "shop.jobs", error)
    problem = f"Some jobs cannot be registered: ZeroDivisionError: division by zero. Fix the error in {__file__}, line "
    for said in told(), told("--check", status=2):
        assert problem in said
    assert "nightly" in told()


def test_it_speaks_english_in_any_language() -> None:
    singleton_job("nightly", schedule="0 8 * * 1", time_zone="Europe/Rome")(print)
    follow_code()
    start_run("nightly")
    gates().update(next_slot=DBNow() - HOUR)
    english = told()
    assert "delayed" in english
    with translation.override("de"):
        assert without_seconds_of_age(told()) == without_seconds_of_age(english)


def without_seconds_of_age(text: str) -> str:
    """Also without the width of the columns, which are as wide as what is in them."""
    return re.sub(r" +", " ", re.sub(r"\d+ seconds?", "", text))


def test_instants_are_in_the_zone_of_the_project(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    singleton_job("nightly", schedule="0 23 * * *", time_zone="UTC")(print)
    follow_code()
    gates().update(paused=True, paused_until=datetime(2099, 1, 1, tzinfo=UTC))
    said = told()
    assert re.search(r"nightly  +paused .* \d{4}-\d\d-\d\d 08:00:00 JST, in ", said)
    assert "nightly  2099-01-01 09:00:00 JST" in said


def test_a_bar_is_escaped_on_each_line() -> None:
    start_run("nightly")
    locks().update(hostname="web|1")
    expire("nightly")
    first, *rest = told("--check", status=2).splitlines()
    assert first.count("|") == 1
    assert not any("|" in line for line in rest)
    assert any(r"web\x7c1" in line for line in rest)


# --- pauses


def test_a_pause_is_shown_with_its_end_its_user_and_its_reason() -> None:
    schedule()
    schedule("hourly")
    change(paused=True, paused_until=datetime(2999, 12, 1, 6, tzinfo=UTC), paused_by="anna", pause_reason="a\nb")
    change("hourly", paused=True)
    text = told("--check")
    assert re.search(r"^PAUSED +UNTIL +BY +BECAUSE$", text, re.MULTILINE)
    assert re.search(r"^nightly +2999-12-01 06:00:00 UTC +anna +a\\nb$", text, re.MULTILINE)
    assert re.search(r"^hourly +resumed$", text, re.MULTILINE)
    job = next(job for job in facts()["jobs"] if job["name"] == "nightly")
    pause = ("paused", "paused_until", "pause_reason", "paused_by")
    assert [job[name] for name in pause] == [True, "2999-12-01T06:00:00+00:00", "a\nb", "anna"]


def test_a_pause_that_has_ended_by_itself_is_not_shown() -> None:
    schedule()
    change(paused=True, paused_until=DBNow(), paused_by="anna", pause_reason="upgrade")
    assert "PAUSED" not in told()
    (job,) = facts()["jobs"]
    assert (job["state"], job["paused"], job["paused_until"], job["pause_reason"]) == ("idle", False, None, None)


# --- the page of a job


def page(name: str = "nightly") -> str:
    return told(name)


def test_the_page_of_a_job_has_all_that_is_known_of_it() -> None:
    singleton_job("nightly", schedule="30 2 * * *", time_zone="Asia/Tokyo", max_runtime=10 * MINUTE)(print)
    follow_code()
    start_run().finish(SUCCESS)
    origin = "/srv/shop/jobs.py\n23\nnightly\nsend(all)"
    start_run().finish(SUCCESS._replace(status="failed", is_failure=True, error="ValueError: closed", origin=origin))
    call_command("pause_singletons", "nightly", because="a|b\u202e", stdout=StringIO())
    assert gates().filter(name="nightly").update(paused=False, last_finished_at=DBNow() - HOUR)
    start_run()
    locks().update(progress={"done": 1, "total": 4, "text": "adding", "output": "one\ntwo \x1b[2J\n"})
    text = page()
    assert re.search(r"^nightly: failing( since .* JST)?, 1 failure in a row$", text, re.MULTILINE), text
    for words in (
        "  CRITICAL: The last run of the job 'nightly' fai",
        "Schedule: At 02:30 every day (Asia/Tokyo)\n",
        f"Now: held by {lock().holder} for ",
        "Progress: 25 % 1 of 4, adding\n",
        "with the end of its output:\n    one\n    two \\x1b[2J\n",
        "ValueError: closed\n    /srv/shop/jobs.py, line 23, in nightly: send(all)\n",
        r"a\x7cb\u202e",
        f"Defined in {registry.get('nightly').place}\nOptions: max_runtime=10 minutes\n",
    ):
        assert words in text, (words, text)
    assert re.search(r"^Last success: .* JST, ", text, re.MULTILINE)
    assert len(re.findall(r"^(?:Next slots:|           ) \d{4}-\d\d-\d\d 02:30:00 JST, in ", text, re.MULTILINE)) == 5
    runs_of_it = re.findall(r"^#\d+ +(\w+)", text, re.MULTILINE)
    assert runs_of_it == ["running", "failed", "successful"]
    assert re.search(r"^\d{4}-.* JST +paused +\S+.* a", text, re.MULTILINE)
    assert "\x1b" not in text


def test_of_a_job_that_has_never_run_it_has_little() -> None:
    singleton_job("nightly", schedule="@daily", lock="shared", lease=5 * SECOND)(print)
    text = page()
    assert text.startswith("nightly: never requested")
    assert "Options: lock='shared', lease=5 seconds" in text
    assert "RUN" not in text
    assert "Last error" not in text


def test_of_a_job_without_code_it_has_what_the_database_knows() -> None:
    start_run("gone").finish(SUCCESS)
    text = page("gone")
    assert text.startswith("gone: idle\nSchedule: none\nLast success: ")
    assert "Defined in" not in text


def test_the_secret_address_of_a_job_is_not_shown() -> None:
    singleton_job("nightly", schedule="@daily", ping_url="https://ping.example/secret")(print)
    assert "secret" not in page()


def test_a_lock_that_belongs_to_no_job_has_its_line() -> None:
    take("block")
    assert [cells[:2] for cells in rows(told("block"))] == [["block", "running"]]


@pytest.mark.usefixtures("several")
def test_a_name_is_as_good_as_the_option_to_programs() -> None:
    # It says since when, in minutes, and one may begin in between.
    eventually(lambda: told("nightly", "--check", status=2) == told("--job", "nightly", "--check", status=2))
    assert [job["name"] for job in facts("nightly")["jobs"]] == ["nightly"]
    with pytest.raises(CommandError, match="There is no job 'mali'"):
        told("mali")
    for other in ["--job", "hourly"], ["--queue", "mail"], ["--acknowledge", "hourly"], ["--send-test"]:
        with pytest.raises(CommandError, match="NAME is the page of one job"):
            told("nightly", *other)


# --- disabled


@pytest.mark.usefixtures("trouble")
def test_where_nothing_is_enabled_nothing_is_critical_and_it_says_so(settings: Settings) -> None:
    settings.SINGLEJOB = {"ENABLED": False}
    summary = told("--check").splitlines()[0]
    assert summary == "OK: disabled by SINGLEJOB['ENABLED']. Jobs and locks: 8. | due=0 failed=0 workers=0"
    found = facts("--check")
    assert (found["enabled"], found["level"], found["findings"]) == (False, "ok", [])
    settings.SINGLEJOB = {}
    assert facts()["enabled"]
