"""The same as tasks, several of which run at once in the threads of one process."""

from __future__ import annotations

from tests.app.tasks_api import task
from tests.life import work
from tests.life.project import note


@task
def reads_credential() -> str:
    return work.reads_credential()


@task
def writes_scratch() -> str:
    return work.writes_scratch()


@task
def uses_session() -> int:
    return work.uses_session()


@task
def writes_global_file() -> str:
    return work.writes_global_file()


@task
def rolls_dice() -> list[float]:
    return work.rolls_dice()


@task
def is_traced() -> str:
    return work.is_traced()


@task
def logs_lines() -> str:
    return work.logs_lines()


@task
def counts() -> int:
    return work.counts()


@task
def waits() -> str:
    note("waits")
    work.wait_until_told()
    return "told"
