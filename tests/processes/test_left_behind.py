"""Whatever a shell command starts holds its lock too; `test_flock.py` covers the usual cases."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from django_singlejob.models import JobLock
from tests.databases import APPS
from tests.processes import rests
from tests.processes.rests import pid
from tests.processes.witness import ends, is_alive, is_over, state_of
from tests.waiting import a_moment, eventually, work_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.children import Child, Spawn

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)

# In Python, because a shell makes its background processes ignore SIGINT.
ENDS_BY_A_SIGNAL = """
import os, signal, sys, time
def end(*arguments):
    print("rest was signalled", flush=True)
    sys.exit()
for signum in signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
    signal.signal(signum, end)
print("rest is", os.getpid(), flush=True)
for _ in range(600):
    time.sleep(0.1)  # a signal that arrives just before a sleep is handled after it
"""
LEAVES_ITS_GROUP = """
import os, signal, time
os.setpgid(0, os.getpgid(os.getppid()))
signal.signal(signal.SIGTERM, HANDLER)
print("command is", os.getpid(), flush=True)
time.sleep(60)
"""
LEFT_BEHIND = "nightly: The command has exited, but processes that it started are still running"
OUT_OF_REACH = "nightly: Processes that the command started are still running and cannot be killed"
UNLOCKED = "nightly: Processes that the command started are still running, without the lock"

DESCRIPTORS = """
import os, sys
from contextlib import suppress
shown = [sys.stdin.read()]
for number in range(256):
    with suppress(OSError):
        os.fstat(number)
        shown.append(number)
print(shown)
"""

# The grace is a sixth of the lease. A busy machine may need more than the short one to hear a signal.
A_LONG_LEASE = ("--lease", "600")
A_LEASE = ("--lease", "24")
A_SHORT_LEASE = ("--lease", "6")
A_SECOND_THOUGHT = 1.2


@pytest.fixture
def child_env(child_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    return child_env | rests.write_scripts(tmp_path) | {"ENDS_BY_A_SIGNAL": ENDS_BY_A_SIGNAL}


@pytest.fixture(autouse=True)
def no_rest_outlives_its_test(spawn: Spawn) -> Iterator[None]:
    yield
    rests.end(spawn)


def shell(spawn: Spawn, script: str, *options: str) -> Child:
    return spawn.command("run_singleton", "nightly", *options, "--", "sh", "-c", f"echo command is $$; {script}")


def wait_for_the_end_of_the_command(child: Child) -> None:
    """And until its supervisor has collected it: to that, a signal comes before the end until then."""
    number = pid("command", child)
    eventually(lambda: not state_of(number))


def is_said(child: Child, word: str, times: int) -> bool:
    return child.output.count(word) == times


def is_held() -> bool:
    return JobLock.objects.filter(name="nightly").exists()


# --- without a signal


def test_the_lease_is_kept_alive_and_one_line_is_logged(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "sh $REST & exit 0", "-v", "2", *A_SHORT_LEASE)
    child.wait_for(LEFT_BEHIND)
    for _ in range(2):
        heartbeat_at = JobLock.objects.get().heartbeat_at
        eventually(JobLock.objects.filter(heartbeat_at__gt=heartbeat_at).exists)
    go.touch()
    assert child.finish() == 0
    assert child.output.count("nightly: The command has exited") == 1
    assert "nightly: ran in" in child.output.splitlines()[-1]
    assert is_over("nightly", "successful")


def test_with_verbosity_0_nothing_is_said(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "sh $REST & exit 0", "-v", "0")
    wait_for_the_end_of_the_command(child)
    work_for(1.5)
    go.touch()
    assert child.finish() == 0
    assert "nightly:" not in child.output


@pytest.mark.parametrize(("stream", "status"), [(1, 0), (2, 3)])
def test_a_closed_stream_does_not_change_the_exit_status_of_a_command(spawn: Spawn, stream: int, status: int) -> None:
    code = f"import os, sys; os.close({stream}); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    script = f"sh -c 'sleep 2' & exit {status}"
    child = spawn("-c", code, "-m", "django", "run_singleton", "nightly", "--", "sh", "-c", script)
    assert child.finish() == status


@pytest.mark.parametrize(("options", "is_more"), [([], True), (["-o"], False)])
def test_a_command_has_our_input_and_output_and_one_more_descriptor(
    spawn: Spawn, options: list[str], is_more: bool
) -> None:
    child = spawn.command("run_singleton", "nightly", *options, "--", sys.executable, "-c", DESCRIPTORS)
    assert child.finish() == 0
    shown = eval(child.output.splitlines()[0])
    assert shown[:4] == ["", 0, 1, 2]
    assert len(shown[4:]) == is_more
    assert all(number >= 10 for number in shown[4:])


# --- a signal


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_a_signal_reaches_what_was_left_behind_and_the_run_is_interrupted(spawn: Spawn, signum: int) -> None:
    child = shell(spawn, f'{sys.executable} -c "$ENDS_BY_A_SIGNAL" & exit 0', *A_LONG_LEASE)
    wait_for_the_end_of_the_command(child)
    pid("rest", child)
    child.send_signal(signum)
    assert child.finish() == 128 + signum
    assert "rest was signalled" in child.output
    assert is_over("nightly", "interrupted")


def test_a_command_that_ends_well_after_a_signal_was_successful_with_all_that_it_started(
    spawn: Spawn, go: Path
) -> None:
    child = shell(spawn, "trap 'exit 0' TERM; sh $REST & while :; do sleep 0.05; done", *A_LONG_LEASE)
    pid("rest", child)
    child.terminate()
    wait_for_the_end_of_the_command(child)
    assert is_held()
    go.touch()
    assert child.finish() == 0
    assert is_over("nightly", "successful")


def test_but_not_if_something_had_to_be_killed(spawn: Spawn) -> None:
    child = shell(spawn, "trap 'exit 0' TERM; sh $REST & while :; do sleep 0.05; done", *A_SHORT_LEASE)
    rest = pid("rest", child)
    child.terminate()
    assert child.finish() == 143
    assert not is_alive(rest)
    assert is_over("nightly", "interrupted")


def test_it_reaches_a_command_that_has_left_its_process_group(spawn: Spawn) -> None:
    code = LEAVES_ITS_GROUP.replace("HANDLER", "signal.SIG_DFL")
    child = spawn.command("run_singleton", "nightly", *A_LONG_LEASE, "--", sys.executable, "-c", code)
    pid("command", child)
    child.terminate()
    assert child.finish() == 143
    assert is_over("nightly", "interrupted")


def test_the_command_itself_may_take_its_time_to_end(spawn: Spawn, go: Path) -> None:
    child = spawn.command("run_singleton", "nightly", *A_SHORT_LEASE, "--", "sh", "-c", f"exec sh {spawn.env['REST']}")
    rest = pid("rest", child)
    child.terminate()
    child.wait_for("rest was signalled")
    work_for(1.5)  # more than the grace
    assert is_alive(rest)
    assert is_held()
    go.touch()
    assert child.finish() == 0


def test_a_process_that_has_closed_its_descriptors_has_the_grace_in_the_group_too(spawn: Spawn, go: Path) -> None:
    # Python's subprocess closes them by default.
    code = "import os, subprocess; subprocess.run(['sh', os.environ['REST']])"
    child = shell(spawn, f'exec {sys.executable} -c "{code}"', *A_LONG_LEASE)
    pid("rest", child)
    child.terminate()
    wait_for_the_end_of_the_command(child)
    a_moment()
    assert is_held()
    go.touch()
    assert child.finish() == 143
    assert "rest has ended" in child.output


def test_what_is_stopped_is_killed_after_the_grace(spawn: Spawn) -> None:
    child = shell(spawn, "sh $REST & exit 0", *A_SHORT_LEASE)
    rest = pid("rest", child)
    wait_for_the_end_of_the_command(child)
    os.kill(rest, signal.SIGSTOP)
    child.terminate()
    assert child.finish() == 143
    assert not is_alive(rest)


def test_what_cannot_be_reached_keeps_the_lock_and_is_reported(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "setsid sh $REST & exit 0", *A_SHORT_LEASE)
    rest = pid("rest", child)
    wait_for_the_end_of_the_command(child)
    child.terminate()
    child.wait_for(OUT_OF_REACH)
    assert is_held()
    assert is_alive(rest)
    assert "rest was signalled" not in child.output
    go.touch()
    assert child.finish() == 143
    assert child.output.count(OUT_OF_REACH) == 1
    assert is_over("nightly", "interrupted")


def test_the_first_process_of_a_container_does_not_wait_for_dead_orphans(spawn: Spawn) -> None:
    child = spawn.code(
        """
        import ctypes
        from django_singlejob.management.commands.run_singleton import Command
        assert ctypes.CDLL(None).prctl(36, 1) == 0  # PR_SET_CHILD_SUBREAPER
        words = ["run_singleton", "nightly", "--lease", "600", "--", "sh", "-c", "sh $ENDS_ON_SIGTERM; exit 7"]
        Command().run_from_argv(["manage.py", *words])
        """
    )
    pid("rest", child)
    child.terminate()
    assert child.finish() == 143
    assert is_over("nightly", "interrupted")


def at_a_terminal(spawn: Spawn, script: str, *options: str) -> Child:
    code = (
        "import os, pty, sys; at, terminal = pty.openpty(); os.set_inheritable(at, True); os.dup2(terminal, 0); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return spawn("-c", code, "-m", "django", "run_singleton", "nightly", *options, "--", "sh", "-c", script)


def test_at_a_terminal_nothing_is_killed_but_the_lock_is_held(spawn: Spawn, go: Path) -> None:
    child = at_a_terminal(spawn, "sh $REST & wait", *A_SHORT_LEASE)
    rest = pid("rest", child)
    child.terminate()
    child.wait_for(OUT_OF_REACH)
    assert is_held()
    assert is_alive(rest)
    assert os.getpgid(rest) == os.getpgid(child.pid)
    go.touch()
    assert child.finish() == 143


def test_at_a_terminal_the_command_alone_is_killed_when_the_lease_is_lost(spawn: Spawn, go: Path) -> None:
    child = at_a_terminal(spawn, "echo command is $$; trap '' TERM; sh $REST & wait", *A_SHORT_LEASE)
    rest, command = pid("rest", child), pid("command", child)
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert UNLOCKED in child.output
    assert is_alive(rest)
    assert not is_alive(command)
    go.touch()


# --- a lease that is lost


def test_a_command_that_has_left_its_process_group_is_killed_too(spawn: Spawn) -> None:
    code = LEAVES_ITS_GROUP.replace("HANDLER", "signal.SIG_IGN")
    child = spawn.command("run_singleton", "nightly", *A_SHORT_LEASE, "--", sys.executable, "-c", code)
    command = pid("command", child)
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert not is_alive(command)


def test_earlier_signals_do_not_shorten_the_grace(spawn: Spawn) -> None:
    child = shell(spawn, "trap 'echo rereading' HUP; sh $ENDS_SLOWLY & while :; do sleep 0.05; done", *A_LEASE)
    pid("rest", child)
    for times in 1, 2:
        child.send_signal(signal.SIGHUP)
        eventually(partial(is_said, child, "rereading", times))
        work_for(A_SECOND_THOUGHT)
    JobLock.objects.all().delete()
    assert child.finish() == 129
    assert "rest has ended" in child.output


@pytest.mark.parametrize("and_then", ["exit 0", "wait"])
def test_what_is_left_behind_does_not_outlive_the_lease(spawn: Spawn, and_then: str) -> None:
    child = shell(spawn, f"sh $REST & {and_then}", *A_LEASE)
    rest = pid("rest", child)
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert "rest was signalled" in child.output
    assert not is_alive(rest)
    assert ends("nightly") == ["failed"]


def test_what_ends_at_a_signal_is_not_waited_for(spawn: Spawn) -> None:
    child = shell(spawn, "sh $ENDS_ON_SIGTERM & exit 0", *A_LEASE)
    pid("rest", child)
    wait_for_the_end_of_the_command(child)
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert "rest was signalled" in child.output


def test_nobody_waits_for_what_cannot_be_reached(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "setsid sh $REST & exit 0", *A_SHORT_LEASE)
    rest = pid("rest", child)
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert UNLOCKED in child.output
    assert is_alive(rest)
    go.touch()


# --- a daemon


def test_with_close_the_lock_is_the_commands_alone(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "sh $REST & exit 3", "--close")
    assert child.finish() == 3
    assert is_over("nightly", "failed")
    assert is_alive(pid("rest", child))
    assert LEFT_BEHIND not in child.output
    go.touch()


def test_with_close_a_signal_is_forwarded_and_nobody_waits(spawn: Spawn, go: Path) -> None:
    child = shell(spawn, "sh $REST & wait", "-o", *A_LONG_LEASE)
    rest = pid("rest", child)
    child.terminate()
    assert child.finish() == 143
    eventually(lambda: "rest was signalled" in child.output)
    assert is_alive(rest)
    go.touch()


def test_with_close_the_command_has_the_grace_when_the_lease_is_lost(spawn: Spawn) -> None:
    script = "trap 'sleep 1; echo command has ended; exit' TERM; echo trapped; while :; do sleep 0.05; done"
    child = shell(spawn, script, "-o", *A_LEASE)
    child.wait_for("trapped")
    JobLock.objects.all().delete()
    assert child.finish() == 75
    assert "command has ended" in child.output


# --- the wrapper is killed


def test_a_command_that_has_no_name_is_not_found(spawn: Spawn) -> None:
    child = spawn.command("run_singleton", "nightly", "--", "")
    assert child.finish() == 127
    assert "Traceback" not in child.output


def test_a_second_signal_ends_no_command_that_takes_its_time(spawn: Spawn, go: Path) -> None:
    script = "trap 'echo heard' TERM; echo started; until [ -e $GO ]; do sleep 0.1; done; echo done"
    child = spawn.command("run_singleton", "nightly", "--", "sh", "-c", script)
    child.wait_for("started")
    for count in 1, 2:
        child.terminate()
        eventually(partial(lambda count: child.output.count("heard") >= count, count))
        work_for(1.2)
    work_for(5)
    assert child.poll() is None
    go.touch()
    assert child.finish() == 0
    assert "did not return" not in child.output
