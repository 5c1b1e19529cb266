"""The two witnesses that show whether any process of a command is left."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from django_singlejob.running.descendants import Group, Pipe
from tests.waiting import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    with closing(Pipe()) as pipe:
        yield pipe


def start(pipe: Pipe, script: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        ["sh", "-c", script], pass_fds=[pipe.write], process_group=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pipe.let_go()
    return process


def test_a_pipe_is_at_its_end_when_nobody_holds_it(pipe: Pipe) -> None:
    with start(pipe, "read line") as process:
        assert not pipe.is_at_end()
        assert not pipe.is_at_end(0.1)
        assert process.stdin
        process.stdin.close()
        assert pipe.is_at_end(PATIENCE)


def test_what_is_written_into_it_is_no_end_and_blocks_nobody(pipe: Pipe) -> None:
    with start(pipe, f"head -c 1000000 /dev/zero >/dev/fd/{pipe.write}") as process:
        chunks = 0
        while not pipe.is_at_end(PATIENCE):
            chunks += 1
        assert chunks > 1
        assert process.wait() == 0


def test_nor_does_it_block_a_command_that_nobody_looks_after_yet(pipe: Pipe) -> None:
    script = f'exec "{sys.executable}" -c "import os; os.write({pipe.write}, bytes(1000000))"'
    with start(pipe, script) as process:
        try:
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_nothing_else_that_we_start_inherits_it(pipe: Pipe) -> None:
    assert pipe.write >= 10
    assert not os.get_inheritable(pipe.write)
    pipe.let_go()


def test_a_group_is_empty_when_its_last_process_has_gone(pipe: Pipe) -> None:
    with start(pipe, f"exec {pipe.write}>&-; exit 0") as process:
        process.wait()
        eventually(Group(process.pid).is_empty)


def test_once_empty_it_gets_no_more_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *arguments: sent.append(arguments))
    group = Group(999_999_999)
    assert not group.is_empty()
    group.send(15)
    assert sent == [(999_999_999, 0), (999_999_999, 15)]
    monkeypatch.undo()
    assert group.is_empty()
    monkeypatch.setattr(os, "killpg", lambda *arguments: sent.append(arguments))
    group.send(15)
    assert group.is_empty()
    assert len(sent) == 2


def test_one_that_is_anothers_user_is_not_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int, signum: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    assert not Group(999_999_999).is_empty()
