"""The snippets of the recipes about one-offs, tasks and other queues."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dramatiq
import fakeredis
import pytest
import rq
from celery.signals import task_retry
from django.core.management import BaseCommand, call_command, get_commands
from django.db import connections, transaction
from django.utils import timezone
from dramatiq.brokers.stub import StubBroker

from django_singlejob import SKIPPED, InvalidOrder, job_lock, singleton_job
from django_singlejob.models import OneOffJob
from tests.app.models import Counter
from tests.app.tasks_api import PACKAGE, default_task_backend
from tests.databases import APPS
from tests.processes.witness import ends
from tests.recipes.snippets import snippet

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.children import Spawn
    from tests.recipes.modules import Modules

pytest_plugins = ["tests.fixtures", "tests.recipes.brokers", "tests.recipes.modules"]
pytestmark = [
    pytest.mark.on_database("sqlite"),
    pytest.mark.django_db(transaction=True, available_apps=APPS),
]


@dataclass(frozen=True)
class Order:
    pk: int
    language: str = "en"


@pytest.fixture
def jobs(modules: Modules) -> Any:
    """The first snippet is `shop/jobs.py`."""
    return modules("shop.jobs", snippet("recipes/queues.md", "Run a job once, later"))


def work(*options: str, until: str = "--once") -> None:
    call_command("singleton_worker", *options, until, verbosity=0)


def run_now(name: str) -> str:
    """Run a job that has a schedule, whether or not a slot is due."""
    out = StringIO()
    call_command("run_singleton", name, now=True, verbosity=2, stdout=out)
    return out.getvalue()


def statuses() -> list[str]:
    return list(OneOffJob.objects.order_by("pk").values_list("status", flat=True))


# --- one-offs


def test_a_one_off_belongs_to_the_transaction_and_is_run(jobs: Any) -> None:
    with transaction.atomic():
        jobs.place_order(Counter(name="one"))
        transaction.set_rollback(True)
    assert not OneOffJob.objects.exists()
    jobs.place_order(Counter(name="two"))
    row = OneOffJob.objects.get()
    assert (row.args, row.kwargs, row.status) == (["two"], {"language": "it"}, "waiting")
    work()
    assert statuses() == ["done"]


def test_it_is_delayed_in_a_queue_of_its_own(jobs: Any) -> None:
    exec(snippet("recipes/queues.md", "Delay it, or choose its priority and queue"), {})
    row = OneOffJob.objects.get()
    assert (row.priority, row.queue_name) == (10, "mail")
    assert row.run_after > timezone.now()
    work()
    assert statuses() == ["waiting"]


def test_many_are_enqueued_or_none(jobs: Any, modules: Modules) -> None:
    shop = modules("shop.many", snippet("recipes/queues.md", "Enqueue many at once"))
    with pytest.raises(InvalidOrder, match=r"calls\[1\]"):
        shop.confirm_all([Order(1), Order(2, language=object())])  # type: ignore[arg-type]
    assert not OneOffJob.objects.exists()
    rows = shop.confirm_all([Order(1), Order(2, language="it")])
    assert [(row.args, row.kwargs) for row in rows] == [([1], {"language": "en"}), ([2], {"language": "it"})]


def test_one_waits_once(modules: Modules) -> None:
    job = singleton_job("update_index")(print)
    modules("shop.jobs", update_index=job)
    shop = modules("shop.products", snippet("recipes/queues.md", "Enqueue it once"))
    for pk in 1, 2, 2:
        shop.rename(SimpleNamespace(pk=pk, save=list), "new")
    assert [row.asked for row in OneOffJob.objects.order_by("pk")] == [1, 2]


def test_the_result_is_shown(jobs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    jobs.confirm_order.enqueue(4711)
    work()
    exec(snippet("recipes/queues.md", "See the result"), {})
    assert capsys.readouterr().out == "done 1 None \n"


def test_some_are_cancelled_and_others_retried(jobs: Any) -> None:
    for number in 4711, 4712:
        jobs.confirm_order.enqueue(number)
    OneOffJob.objects.filter(args=[4712]).cancel()
    exec(snippet("recipes/queues.md", "Cancel or retry it"), {})
    assert statuses() == ["cancelled", "waiting"]


def test_a_worker_serves_its_queues(jobs: Any) -> None:
    for name in "default", "mail", "default", "mail":
        jobs.confirm_order.using(queue_name=name).enqueue(1)
    lines = [
        line.split("singleton_worker")[1]
        for line in snippet("recipes/queues.md", "Run workers for one queue", "console").splitlines()
    ]
    mail, default = map(shlex.split, lines)
    work(*mail, until="--drain")
    assert statuses() == ["waiting", "done"] * 2
    work(*default, until="--drain")
    assert statuses() == ["done"] * 4


# --- Django's tasks


def test_tasks_are_run(modules: Modules, settings: Settings) -> None:
    found: dict[str, Any] = {}
    exec(snippet("recipes/queues.md", "Run Django's own tasks"), found)
    settings.TASKS = found["TASKS"]
    shop = modules("shop.tasks", snippet("recipes/queues.md", "Run Django's own tasks", number=2))
    result_id = shop.after_payment(Order(4711))
    assert not shop.has_receipt(result_id)
    work("--queue", "mail")
    assert shop.has_receipt(result_id)
    assert shop.send_receipt.get_backend().enqueue_many(shop.send_receipt, [((1,), {}), ((2,), {})])
    assert statuses() == ["done", "waiting", "waiting"]


def test_customers_are_synchronized_one_at_a_time(modules: Modules, settings: Settings) -> None:
    settings.TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend"}}
    shop = modules("shop.sync", snippet("recipes/queues.md", "One at a time for each customer"))
    assert shop.customer_changed(1).id == shop.customer_changed(1).id != shop.customer_changed(2).id
    with job_lock("sync:1"):
        work()
    assert statuses() == ["waiting", "done"]
    assert OneOffJob.objects.order_by("pk")[0].attempt == 1


def test_a_task_is_retried_after_half_a_minute(modules: Modules) -> None:
    snippets = snippet("recipes/queues.md", "Retry a task").replace("...", "raise ConnectionError")
    shop = modules("shop.tasks", snippets)
    shop.charge.enqueue(4711)
    work()
    row = OneOffJob.objects.get()
    assert (row.status, row.attempt, row.max_attempts) == ("waiting", 1, 6)
    assert row.started_at
    assert 30 <= (row.run_after - row.started_at).total_seconds() < 60


def test_a_task_over_a_job_has_its_lock(modules: Modules) -> None:
    shop = modules("shop.tasks", snippet("recipes/queues.md", "One at a time: a task over a job"))
    shop.rebuild_index.enqueue("en")
    with job_lock("rebuild_index"):
        work()
        assert shop.rebuild_index.call("en") is SKIPPED
    assert statuses() == ["waiting"]
    work()
    assert shop.rebuild_index.call("en") is None
    assert ends("rebuild_index") == ["successful"] * 2
    assert shop.rebuild_index.func.retries == 5


REMINDERS = """
from django.tasks import task
@task
def send_reminders(): ...
"""


def test_a_job_enqueues_a_task_of_our_backend(modules: Modules) -> None:
    modules("shop.tasks", REMINDERS)
    modules("shop.jobs", snippet("recipes/queues.md", "Periodic tasks for any backend"))
    assert "remind: ran" in run_now("remind")
    assert OneOffJob.objects.get().task_path == "shop.tasks.send_reminders"


def test_a_job_enqueues_a_task_of_another_backend(modules: Modules, settings: Settings) -> None:
    settings.TASKS = {"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}
    modules("shop.tasks", REMINDERS)
    modules("shop.jobs", snippet("recipes/queues.md", "Periodic tasks for any backend"))
    run_now("remind")
    assert [result.task.name for result in default_task_backend.results] == ["send_reminders"]  # type: ignore[attr-defined]
    assert not OneOffJob.objects.exists()


# --- other queues


@pytest.mark.usefixtures("eager_celery")
def test_celery_runs_one_copy_and_skips_the_others_or_tries_them_later(modules: Modules) -> None:
    shop = modules("shop.tasks", snippet("recipes/queues.md", "Run one copy of a Celery task"))
    shop.rebuild_catalogue.delay("en").get()
    with job_lock("rebuild_catalogue"):
        assert json.dumps(shop.rebuild_catalogue.delay("en").get()) == '"skipped"'
    assert ends("rebuild_catalogue") == ["successful"]
    _tries_again_later(shop)


def _tries_again_later(shop: Any) -> None:
    with ExitStack() as held:
        held.enter_context(job_lock("import_prices"))

        def release(**_: Any) -> None:
            assert not ends("import_prices")
            held.close()

        task_retry.connect(release)
        try:
            shop.import_prices.delay()
        finally:
            task_retry.disconnect(release)
    assert ends("import_prices") == ["successful"]


def test_huey_runs_one_copy(modules: Modules, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.HUEY = {"huey_class": "huey.MemoryHuey", "immediate": True}
    # It is imported anew, and forgotten after the test.
    monkeypatch.setitem(sys.modules, "huey.contrib.djhuey", None)
    del sys.modules["huey.contrib.djhuey"]
    shop = modules("shop.tasks", snippet("recipes/queues.md", "huey"))
    run_now("hourly_sitemap")
    with job_lock("build_sitemap"):
        assert shop.build_sitemap()() is SKIPPED
    assert ends("build_sitemap") == ["successful"]


class ClosingConnections(dramatiq.Middleware):
    """As a project's broker does with django_dramatiq."""

    def after_process_message(self, *_: Any, **__: Any) -> None:
        connections.close_all()


def test_dramatiq_runs_what_a_job_sends(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = StubBroker(middleware=[ClosingConnections()])
    monkeypatch.setattr("dramatiq.broker.global_broker", broker)
    modules("shop.tasks", snippet("recipes/queues.md", "dramatiq"))
    run_now("hourly_feed")
    worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=1)
    worker.start()
    try:
        broker.join("default")
        worker.join()
    finally:
        worker.stop()
        broker.close()
    assert ends("build_feed") == ["successful"]


def test_rq_runs_what_a_job_enqueues(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    monkeypatch.setattr("redis.Redis", lambda: redis)
    modules("shop.jobs", snippet("recipes/queues.md", "rq"))
    run_now("hourly_export")
    for job in rq.Queue(connection=redis).jobs:
        job.perform()
    assert ends("export_orders") == ["successful"]


class Stub(BaseCommand):
    """A command with the options of one of Wagtail's."""

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--days", type=int)

    def handle(self, **_: Any) -> None: ...


def test_wagtails_commands_are_jobs(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "publish_scheduled", "purge_revisions":
        monkeypatch.setitem(get_commands(), name, Stub())
    modules("shop.jobs", snippet("recipes/queues.md", "Wagtail"))
    for name in "publish_scheduled", "purge_revisions":
        assert f"{name}: ran" in run_now(name)


GREENLETS = """
from gevent import monkey
monkey.patch_all()
import django
django.setup()
from datetime import timedelta
import gevent
from django_singlejob import SKIPPED, job_lock, singleton_job
from tests.waiting import eventually

def hold():
    with job_lock("held", lease=timedelta(seconds=9)) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first)
        lease.check()
    return "kept"

@singleton_job
def one():
    holding.join()
    return "done"

holding = gevent.spawn(hold)
calls = [gevent.spawn(one) for _ in range(3)]
gevent.joinall([holding, *calls], raise_error=True)
print(holding.value, sorted(map(repr, (call.value for call in calls))))
"""


@pytest.mark.slow
def test_a_lease_is_kept_among_greenlets(spawn: Spawn) -> None:
    child = spawn("-c", GREENLETS)
    assert child.finish() == 0
    assert "kept [\"'done'\", 'SKIPPED', 'SKIPPED']" in child.output
