"""The snippets of the pages for those who come from something else, and what these say of other queues."""

from __future__ import annotations

import signal
import stat
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_singlejob.models import JobRun, JobStatus, OneOffJob
from tests.children import ROOT
from tests.databases import APPS
from tests.recipes.lines import of_crontab, prompted, shell
from tests.recipes.snippets import snippet
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.children import Spawn
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.brokers", "tests.recipes.modules"]
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=APPS),
    pytest.mark.usefixtures("fresh_process"),
    pytest.mark.on_database("sqlite"),
]


def statuses() -> dict[str, str]:
    return dict(JobRun.objects.values_list("job_name", "status"))


def test_a_crontab_with_flock(spawn: Spawn, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.write_text(f"#!/bin/sh\ntouch {tmp_path}/done\nexit 3\n")
    backup.chmod(backup.stat().st_mode | stat.S_IXUSR)

    clear, back_up = map(of_crontab, snippet("coming-from/crontab.md", "Line by line", "text").splitlines())
    assert shell(spawn, clear).finish() == 0
    assert shell(spawn, back_up.replace("/srv/shop/bin/backup", str(backup))).finish() == 3
    assert (tmp_path / "done").exists()
    assert statuses() == {"clearsessions": "successful", "backup": "failed"}


def test_a_line_refuses_as_soon_as_its_name_is_a_job(spawn: Spawn, tmp_path: Path) -> None:
    """So that it does not run beside the job; and it runs again once the job is taken out."""
    line = of_crontab(snippet("coming-from/crontab.md", "Line by line", "text").splitlines()[1])
    line = line.replace("--min-interval 3600", "--min-interval 0").replace("/srv/shop/bin/backup", "true")
    (once,) = prompted(snippet("coming-from/crontab.md", "All at once, with one line", "console"))
    pass_ = of_crontab(snippet("coming-from/crontab.md", "All at once, with one line", "text"))
    (tmp_path / "shop").mkdir()
    jobs = tmp_path / "shop" / "jobs.py"
    (tmp_path / "shop_settings.py").write_text("from tests.settings import *\nINSTALLED_APPS.append('shop')\n")
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "DJANGO_SETTINGS_MODULE": "shop_settings"}
    jobs.write_text("")
    assert shell(spawn, line, **path).finish() == 0
    jobs.write_text('from django_singlejob import shell_job\nshell_job("backup", ["true"], schedule="@yearly")\n')
    assert shell(spawn, once, **path).finish() == 0
    assert JobStatus.objects.get(name="backup").next_slot
    assert shell(spawn, pass_, **path).finish() == 0
    refused = shell(spawn, line, **path)
    assert refused.finish() == 2
    assert "'backup' is a registered job" in refused.output
    jobs.write_text("")
    assert shell(spawn, line, **path).finish() == 0


def test_django_crontab(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "cron.py").write_text("def send_reminders(): print('Sent.')")
    (tmp_path / "shop" / "jobs.py").write_text(snippet("coming-from/django-cron.md", "django-crontab"))
    child = spawn.code(
        """
        import shop.jobs
        from django.core.management import call_command
        call_command("run_singleton", "send_reminders", now=True, verbosity=0)
        call_command("run_singleton", "clearsessions", now=True, verbosity=0)
        """,
        PYTHONPATH=f"{tmp_path}:{ROOT}",
    )
    assert child.finish() == 0
    assert "Sent." in child.output
    assert statuses() == {"send_reminders": "successful", "clearsessions": "successful"}


def test_django_cron(modules: Modules, capsys: pytest.CaptureFixture[str]) -> None:
    class SendReminders:
        def do(self) -> None:
            print("Sent.")

    modules("shop.cron", SendReminders=SendReminders)
    exec(snippet("coming-from/django-cron.md", "django-cron"), {"__name__": "shop.jobs"})
    call_command("run_singleton", "send_reminders", now=True, verbosity=0)
    assert "Sent." in capsys.readouterr().out
    assert statuses() == {"send_reminders": "successful"}


def test_apscheduler(capsys: pytest.CaptureFixture[str]) -> None:
    exec(snippet("coming-from/apscheduler.md", "Come from APScheduler"), {"__name__": "shop.jobs"})
    call_command("run_singleton", "send_reminders", now=True, verbosity=0)
    assert "Sent." in capsys.readouterr().out
    assert statuses() == {"send_reminders": "successful"}


@pytest.mark.usefixtures("eager_celery")
def test_celery_beat(modules: Modules) -> None:
    reported: list[int] = []
    code = "import celery\n@celery.shared_task\ndef hourly_report(): reported.append(1)"
    modules("shop.tasks", code, reported=reported)
    modules("shop.jobs", snippet("coming-from/celery-beat.md", "Come from Celery beat"))
    call_command("run_singleton", "hourly_report", now=True, verbosity=0)
    assert reported == [1]
    assert statuses() == {"hourly_report": "successful"}


def test_django_tasks_db(spawn: Spawn, settings: Any) -> None:
    tasks = pytest.importorskip("tests.app.django_tasks")
    names: dict[str, Any] = {}
    exec(snippet("coming-from/django-tasks-db.md", "Come from django-tasks-db"), names)
    settings.TASKS = names["TASKS"]
    results = [tasks.plain.using(queue_name=queue).enqueue(1) for queue in ("default", "mail")]

    (line,) = prompted(snippet("coming-from/django-tasks-db.md", "Come from django-tasks-db", "console"))
    worker = shell(spawn, f"exec {line}")
    eventually(lambda: not OneOffJob.objects.exclude(status="done").exists())
    worker.send_signal(signal.SIGTERM)
    assert worker.finish() == 0
    assert [tasks.plain.get_result(result.id).return_value for result in results] == [[[1], {}]] * 2
