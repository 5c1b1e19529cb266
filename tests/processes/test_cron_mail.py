"""What a pass writes without a terminal, where cron mails it: nothing about success, and each failure once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from django_singlejob.models import JobRun
from tests.app import jobs
from tests.databases import APPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.children import Spawn

pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.on_database("sqlite"),  # nothing here depends on the database
]
LOGGED = {"DJANGO_SETTINGS_MODULE": "tests.processes.logging_settings"}
FAILURE = (
    "==> says_and_fails <==\n"
    + "".join(f"line {number}\n" for number in range(12))
    + "says_and_fails: failed, ValueError: no such customer (traceback: in the admin under Runs)\n"
    '  PATH, line 00, in says_and_fails: raise ValueError("no such customer")\n'
    "  More: manage.py singleton_why says_and_fails\n"
)


def mailed(spawn: Spawn, *options: str, **env: str) -> str:
    child = spawn.command("singleton_worker", "--once", *options, **env)
    child.finish()
    return re.sub(r"(?m)^  /.*?, line \d+", "  PATH, line 00", child.output)


def test_nothing_of_what_succeeds_but_it_is_kept(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    assert mailed(spawn) == ""
    assert JobRun.objects.get().output == "first\nsecond"


def test_with_more_verbosity_all_of_it(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    assert re.fullmatch(r"==> says <==\nfirst\nsecond\nsays: ran in \d\.\d s\.\n", mailed(spawn, "-v2"))


def test_what_cannot_be_kept_is_passed_on(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    assert mailed(spawn, SINGLEJOB_TEST_OUTPUT="0") == "==> says <==\nfirst\nsecond\n"


@pytest.fixture
def a_full_history() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER full BEFORE UPDATE ON django_singlejob_jobrun BEGIN SELECT RAISE(ABORT, 'it is full'); END"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER full")


@pytest.mark.usefixtures("a_full_history")
def test_so_is_what_the_history_does_not_take(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    assert "==> says <==\nfirst\nsecond\n" in mailed(spawn)


@pytest.mark.parametrize("env", [{}, LOGGED])
def test_a_failure_is_one_paragraph_headed_by_its_job(spawn: Spawn, env: dict[str, str]) -> None:
    """Also if a handler writes records to standard error."""
    jobs.says_and_fails.enqueue()
    assert mailed(spawn, **env) == FAILURE


def test_of_two_jobs_only_the_one_that_fails(spawn: Spawn) -> None:
    jobs.says.enqueue("first\nsecond")
    jobs.says_and_fails.enqueue()
    assert mailed(spawn) == FAILURE


def test_of_much_output_the_end(spawn: Spawn) -> None:
    jobs.says_much_and_fails.enqueue()
    head, *lines, _, _, _ = mailed(spawn).splitlines()
    assert head == "==> says_much_and_fails <=="
    assert len("\n".join(lines)) == 1_000
    assert lines[-1] == "line 999"


@pytest.mark.parametrize("env", [{}, LOGGED])
def test_one_that_is_killed_is_no_exception(spawn: Spawn, env: dict[str, str]) -> None:
    """Its supervisor logs that."""
    jobs.says_and_dies.enqueue()
    assert mailed(spawn, **env) == (
        "==> says_and_dies <==\nlast words\n"
        "says_and_dies: failed, JobDied: Its process was killed by SIGKILL.\n"
        "  More: manage.py singleton_why says_and_dies\n"
    )


def test_another_record_of_this_package_is_written(spawn: Spawn) -> None:
    jobs.says_and_runs_a_command.enqueue()
    written = mailed(spawn, **LOGGED)
    assert "progress of 'says_and_runs_a_command' was not recorded" in written
    assert "Traceback" not in written
    assert written.count("exit status 3") == 1


def test_a_link_leads_to_the_run(spawn: Spawn) -> None:
    jobs.says_and_fails.enqueue()
    written = mailed(spawn, SINGLEJOB_TEST_ADMIN_URL="https://shop.example/admin/")
    page = f"https://shop.example/admin/django_singlejob/jobrun/{JobRun.objects.get().pk}/change/"
    assert written.endswith(f"  More: {page}\n")


def test_what_a_shell_command_prints_is_no_exception(spawn: Spawn) -> None:
    jobs.shells_and_fails.enqueue()
    assert mailed(spawn) == (
        "==> shells_and_fails <==\nsaved\n"
        "shells_and_fails: The command exited with status 3.\n"
        "  More: manage.py singleton_why shells_and_fails\n"
    )
