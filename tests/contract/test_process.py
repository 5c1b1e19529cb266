"""Processes: a forked child owns nothing, whatever it does, and a process that exits leaves nothing behind."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models.runs import runs
from tests.contract.acts import expire, is_free, last_run, lock, start_run
from tests.databases import APPS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

FORKING_JOB = """
import os, sys
from django_singlejob import singleton_job
from tests.contract.acts import closing, in_thread, lock

@singleton_job
def nightly():
    child = os.fork()
    if not child:
        {end}
    _, status = os.waitpid(child, 0)
    print("the child ended with", os.waitstatus_to_exitcode(status))
    assert in_thread(lock).pid == os.getpid()
    return "done"

print(nightly())
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("os._exit(0)", 0),
        ("return 'done'", 1),
        ("raise ZeroDivisionError", 1),
        ("os.kill(os.getpid(), 2)", -2),
    ],
)
def test_a_forked_child_that_ends_frees_nothing(spawn: Spawn, end: str, status: int) -> None:
    child = spawn.code(FORKING_JOB.format(end=end))
    assert child.finish() == 0
    assert f"the child ended with {status}" in child.output
    assert child.output.splitlines()[-1] == "done"
    assert last_run().status == "successful"
    assert is_free()


def test_a_forked_child_cannot_use_the_lease(spawn: Spawn) -> None:
    child = spawn.code("""
        import os
        from django_singlejob import LeaseLost, job_lock
        from tests.contract.acts import in_thread, lock

        with job_lock("nightly") as lease:
            child = os.fork()
            if not child:
                assert lease.lost
                assert not lease.release()
                for use in lease.check, lease.renew, lease.atomic().__enter__:
                    try:
                        use()
                    except LeaseLost as loss:
                        assert "belongs to the parent process" in str(loss)
                        print("refused", flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            in_thread(lock)
            lease.check()
    """)
    assert child.finish() == 0
    assert child.output.count("refused") == 3
    assert is_free()


def test_what_is_still_held_at_exit_is_released(spawn: Spawn) -> None:
    child = spawn.code("from tests.contract.acts import start_run; start_run()")
    assert child.finish() == 0
    assert is_free()
    assert last_run().status == "interrupted"


def test_what_is_held_when_ctrl_c_is_pressed_is_released(spawn: Spawn) -> None:
    child = spawn.code("""
        from tests.contract.acts import take
        from tests.waiting import work_until_ended
        take()
        print("held")
        work_until_ended()
    """)
    child.wait_for("held")
    assert not is_free()
    child.send_signal(signal.SIGINT)
    assert child.finish() == -signal.SIGINT
    assert is_free()


def test_a_job_that_is_running_when_ctrl_c_is_pressed_is_interrupted(spawn: Spawn) -> None:
    child = spawn.code("""
        from django_singlejob import singleton_job
        from tests.waiting import work_until_ended

        @singleton_job
        def nightly():
            print("running")
            work_until_ended()

        nightly()
    """)
    child.wait_for("running")
    child.send_signal(signal.SIGINT)
    assert child.finish() == -signal.SIGINT
    assert last_run().status == "interrupted"
    assert is_free()


def test_who_was_robbed_frees_nothing_at_exit(spawn: Spawn, tmp_path: Path) -> None:
    wake_up = tmp_path / "wake-up"
    child = spawn.code(
        """
        import sys
        from pathlib import Path
        from tests.contract.acts import start_run
        from tests.waiting import eventually

        zombie = start_run()
        print("held")
        eventually(Path(sys.argv[1]).exists)
        zombie.check()
        """,
        str(wake_up),
    )
    child.wait_for("held")
    expire()
    successor = start_run()
    wake_up.touch()
    assert child.finish() == 0
    assert lock().token == successor.token
    assert [run.status for run in runs().order_by("pk")] == ["abandoned", "running"]
