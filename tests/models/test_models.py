"""The models' names, which users and other tools rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.apps import apps
from django.db import connection, models

from django_singlejob.models import JobAlert, JobLock, JobNote, JobRun, JobStatus, OneOffJob, WorkerPass
from django_singlejob.running.enqueue import Order
from tests.contract.acts import gate, lock, start_run

if TYPE_CHECKING:
    from django.db.models import Model

pytest_plugins = "tests.fixtures"
pytestmark = pytest.mark.usefixtures("fresh_process")

FIELDS: dict[type[Model], str] = {
    JobLock: """name token hostname pid command acquired_at heartbeat_at heartbeats heartbeat_interval expires_at
        sent_at job_name slot attempt queues stopped_by progress""",
    # docs/contributors/decisions.md explains hold_count, last_slot and last_attempt.
    JobStatus: """name fence token hold_count schedule time_zone next_slot last_slot last_attempt abandoned paused
        paused_until pause_reason paused_by paused_with_all hidden last_started_at last_finished_at last_status
        consecutive_failures run_count mean_duration misfire_count coalesced_count
        own_schedule own_time_zone schedule_until of_job""",
    JobRun: """id job_name lock fence token status trigger requested_by slot retried_slot attempt hostname pid
        started_at finished_at duration acquire_duration error traceback origin output""",
    OneOffJob: """id job_name task_path args kwargs queue_name priority status run_after started_at finished_at
        version token attempt max_attempts backend exclusive hostname pid worker_ids result error error_class errors
        traceback origin
        created_at requested_by stopped_by retried_slot suspect unique_key asked waiting_key""",
    JobAlert: "id subject kind sent_at is_sent acknowledged_at acknowledged_until acknowledged_by reason",
    JobNote: "id job_name kind at by reason until first_slot last_slot number details",
    WorkerPass: "key queues hostname pid is_once first_seen_at seen_at gap release clock_error trouble",
}
#: The database sets them.
OF_THE_DATABASE = {"created_at", "run_after"}
TABLES: dict[type[Model], str] = {
    JobLock: "django_singlejob_joblock",
    JobStatus: "django_singlejob_jobstatus",
    JobRun: "django_singlejob_jobrun",
    OneOffJob: "django_singlejob_oneoffjob",
    JobAlert: "django_singlejob_jobalert",
    JobNote: "django_singlejob_jobnote",
    WorkerPass: "django_singlejob_workerpass",
}
INDEXES: dict[type[Model], dict[str, list[str]]] = {
    JobLock: {},
    JobStatus: {"singlejob_status_next_slot": ["of_job", "next_slot"]},
    JobRun: {
        "singlejob_run_job_started": ["job_name", "started_at"],
        "singlejob_run_started": ["started_at"],
        "singlejob_run_status_started": ["status", "started_at"],
        "singlejob_run_host_started": ["hostname", "started_at"],
        "singlejob_run_trigger_started": ["trigger", "started_at"],
    },
    OneOffJob: {
        "singlejob_one_off_next": ["status", "exclusive", "priority", "run_after", "id"],
        "singlejob_one_off_due": ["status", "run_after"],
        "singlejob_one_off_finished": ["status", "finished_at"],
    },
    JobAlert: {},
    JobNote: {"singlejob_note_job_at": ["job_name", "at"], "singlejob_note_at": ["at"]},
    WorkerPass: {},
}

each_model = pytest.mark.parametrize("model", FIELDS, ids=lambda model: model.__name__)


def test_these_are_all() -> None:
    models = apps.get_app_config("django_singlejob").get_models()
    assert {model for model in models if not model._meta.proxy} == {*FIELDS}


@each_model
def test_the_fields_are_those_of_the_design(model: type[Model]) -> None:
    assert {field.name for field in model._meta.fields} == {*FIELDS[model].split()}


@each_model
def test_only_a_column_that_was_added_later_has_a_default_in_the_database(model: type[Model]) -> None:
    """An older release still inserts rows during a deploy."""
    added = {
        "OneOffJob": {"suspect", "unique_key", "asked", *OF_THE_DATABASE},
        "JobRun": {"lock"},
        "JobStatus": {"own_schedule", "own_time_zone"},
    }
    found = {field.name for field in model._meta.fields if field.has_db_default()}
    assert found == added.get(model.__name__, set())


@each_model
def test_no_row_depends_on_another_ones(model: type[Model]) -> None:
    keys = [field for field in model._meta.fields if isinstance(field, models.ForeignKey)]
    assert not any(getattr(field, "db_constraint", True) for field in keys)


@pytest.mark.django_db
@each_model
def test_tables_and_indexes_have_these_names(model: type[Model]) -> None:
    assert model._meta.db_table == TABLES[model]
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, model._meta.db_table)
    named = {name: found["columns"] for name, found in constraints.items() if found["index"]}
    # PostgreSQL has a second index on a text key, for LIKE. MariaDB lists unique constraints as indexes too.
    others = ("PRIMARY", "_pkey", "_like", "token", "subject_kind", "one_off_unique")
    assert {name: columns for name, columns in named.items() if not name.endswith(others)} == INDEXES[model]


@pytest.mark.django_db
def test_a_run_is_found_by_its_token_alone() -> None:
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, JobRun._meta.db_table)
    assert [found["columns"] for found in constraints.values() if found["unique"] and not found["primary_key"]] == [
        ["token"]
    ]


def test_keys_are_names_or_numbers_without_end() -> None:
    assert JobLock._meta.pk.name == JobStatus._meta.pk.name == "name"
    assert isinstance(JobRun._meta.pk, models.BigAutoField)
    assert isinstance(OneOffJob._meta.pk, models.BigAutoField)
    assert JobLock._meta.get_field("name").max_length == JobStatus._meta.get_field("name").max_length == 200


def test_what_can_become_of_a_run() -> None:
    assert JobRun.Status.values == ["running", "successful", "failed", "abandoned", "interrupted", "skipped"]
    assert JobRun.Trigger.values == ["call", "command", "schedule", "one_off", "manual"]


def test_what_can_become_of_a_one_off() -> None:
    assert OneOffJob.Status.values == ["waiting", "in_progress", "done", "failed", "cancelled"]


@pytest.mark.django_db
class TestRows:
    def test_they_say_what_they_are(self) -> None:
        start_run()
        assert str(lock()) == str(gate()) == "nightly"
        assert str(JobRun.objects.get()) == f"nightly #{JobRun.objects.get().pk} (running)"
        assert lock().holder == f"{lock().hostname}, pid {lock().pid}"
        one_off = Order(job_name="nightly").enqueue()
        assert str(one_off) == f"nightly #{one_off.pk} (waiting)"
