"""Which tests run where: a pytest plugin with the option `--long` and the marks `on_database` and `long`.

All tests run on SQLite. On a server run those that use the database and are `EVERYWHERE`, those that name the server
themselves, and those of files that are named on the command line. What is `long` runs only with `--long`, which runs
all that use a database on each of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

TESTS = Path(__file__).parent
#: Paths below tests/: what depends on the database, and so runs on each of them. All else runs on SQLite.
EVERYWHERE = {
    "admin/test_admin_ledger.py",
    "admin/test_admin_one_offs.py",
    "admin/test_admin_queries.py",
    "contract",
    "control",
    "database",
    "locking",
    "models",
    "monitoring/test_health.py",
    "monitoring/test_queues.py",
    "process/test_clock.py",
    "processes/test_death.py",
    "processes/test_hung_database.py",
    "processes/test_least_grants.py",
    "processes/test_migrate.py",
    "processes/test_outages.py",
    "processes/test_pgbouncer.py",
    "processes/test_same_slot_by_hand.py",
    "processes/test_schedules.py",
    "processes/test_sick_servers.py",
    "processes/test_standby.py",
    "processes/test_two_faults.py",
    "processes/test_vanished.py",
    "running/test_enqueue.py",
    "running/test_insert.py",
    "tasks/test_batches.py",
    "test_single_statement.py",
    "testing",
    "worker/test_due.py",
}
#: The exceptions, and why SQLite suffices.
ONCE = {
    "locking/test_heartbeat.py": "threads",
    "locking/test_heartbeat_thread.py": "threads",
    "models/test_runs.py::test_any_number_of_jobs_may_have_some": "SQLite's limit",
    "tasks/test_batches.py::test_many_that_nobody_knows_take_few_queries": "counts",
}
#: Paths below tests/, or the nodes of tests: load, random rounds, searches, and what is the rarest.
LONG = {
    "admin/test_addresses.py::test_nor_does_one_from_djangos_own",
    "browser/test_alarm.py",
    "browser/test_lock_pages.py::test_a_watch_that_is_long_keeps_no_other_lock_waiting",
    "browser/test_lock_pages.py::test_thirty_fit_on_a_phone",
    "browser/test_lock_pages.py::test_to_force_one_nobody_waits_for_the_watch_of_another",
    "browser/test_night.py",
    "browser/test_overview_on_two_screens.py",
    "browser/test_themes.py",
    "chaos/test_chaos.py::test_ctrl_c_ends_it_early_and_it_judges_what_there_is",
    "chaos/test_chaos.py::test_if_nothing_goes_wrong_nothing_is_found_and_nothing_is_left",
    "clusters/test_galera.py",
    "contract/test_hidden_meanwhile.py",
    "model/test_model.py::test_the_model_follows_what_the_real_code_does_now",
    "model/test_model.py::test_the_model_is_as_expected",
    "processes/test_interrupts.py::test_a_plain_script_that_is_interrupted_at_a_random_moment_releases_at_exit",
    "processes/test_interrupts.py::test_no_signal_at_a_random_moment_leaves_a_lock",
    "processes/test_foreign_tasks.py",
    "processes/test_schedules.py::test_200_slots_are_run_once_each_however_wrong_the_servers_clocks_are",
    "processes/test_schedules.py::test_no_slot_is_lost_or_run_again_when_servers_are_away_or_die_and_the_history_is_deleted",
    "processes/test_schedules.py::test_slots_that_are_coalesced_are_skipped_and_the_others_run_once_each",
    "processes/test_signal_rounds.py",
    "processes/test_worker_load.py",
    "processes/test_worker_seen.py::test_no_signal_at_a_random_moment_of_its_start_leaves_a_lock",
    "simulation/test_explore.py::test_finds_what_a_single_order_shows",
    "simulation/test_explore.py::test_pruning_loses_no_outcome",
    "simulation/test_reverted_repairs.py",
    "simulation/test_simulation.py::test_no_promise_is_broken_in_a_minute",
    "test_example_project.py::test_in_a_terminal_it_is_a_table_that_changes_in_place",
}
#: Paths below tests/, or the nodes of tests: grids. If a test has more than two rows, CI runs one row of this
#: many. The others are `long`, unless the command line names their file. The longest name counts. Where each row is a
#: promise of its own, all of them run.
GRIDS = {
    "admin/test_addresses.py": 4,
    "admin/test_admin_jobs.py::test_whatever_it_is_called": 4,
    "admin/test_admin_one_offs.py::test_whatever_is_typed_is_answered_with_a_form": 4,
    "browser/test_looks.py": 7,
    "browser/test_stage.py": 4,
    "integrations": 4,
    "life": 4,
    "management/test_call_command.py": 4,
    "management/test_hostile_rows.py": 4,
    "models/test_unreadable.py": 16,
    "monitoring/test_verdict.py::test_the_command_and_the_admin_say_the_same_and_each_finding_has_a_link": 4,
    "overlap": 4,
    "integrations/test_health_page.py": 1,
    "integrations/test_pings.py": 1,
    "processes": 4,
    "processes/test_exit_statuses.py": 1,
    "processes/test_interrupts.py": 1,
    "processes/test_least_grants.py": 1,
    "processes/test_not_begun.py": 1,
    "processes/test_stalled_readers.py": 1,
    "processes/test_stopped.py": 1,
    "processes/test_supervisor.py": 1,
    "processes/test_suspects.py": 1,
    "simulation/test_simulation.py::test_each_scenario_comes_to_its_end": 4,
}
#: Paths below tests/, or the nodes of tests: what takes long without a mark of its own.
SLOW = {
    "browser",
    "clusters",
    "management/test_hostile_rows.py",
    "models/test_unreadable.py",
    "management/test_startup.py::test_run_singleton_imports_nothing_that_only_others_need",
    "monitoring/test_verdict.py::test_the_command_and_the_admin_say_the_same_and_each_finding_has_a_link",
    "running/test_enqueue.py::test_a_worker_outlives_what_was_written_by_hand",
    "running/test_values.py::test_the_arguments_together_have_the_same_length",
    "overlap",
    "processes",
    "jobs/test_slots.py::TestSeveral::test_it_may_be_as_early_as_an_instant_can_be",
    "simulation/test_simulation.py::test_each_scenario_comes_to_its_end",
}
#: So do tests that start processes.
SLOW_FIXTURES = {"child_env", "proxy"}
#: On PostgreSQL, these are run a second time with single statements. With --long, so is the whole contract.
GRANTS = {
    "contract/test_claims.py",
    "contract/test_contention.py",
    "contract/test_durable.py",
    "contract/test_fence.py",
    "contract/test_gate.py",
    "contract/test_hidden.py",
    "contract/test_lock.py",
    "contract/test_loss.py",
    "contract/test_record_pairs.py",
    "contract/test_slots_by_hand.py",
    "contract/test_takeover.py",
    "contract/test_callers_transactions.py",
    "processes/test_death.py",
    "processes/test_outages.py",
    "processes/test_two_faults.py",
}
#: What tests ask for if they use the database.
DATABASE_FIXTURES = {"child_env", "database_url", "db", "django_db_setup", "live_server", "transactional_db"}


def sampled(cases: Iterable[object], every: int = 4) -> list[ParameterSet]:
    """The cases of a grid, for `parametrize`: one of `every` few is always run, the others are `long`."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else [case]), marks=[pytest.mark.long] if number % every else [])
        for number, case in enumerate(cases)
    ]


#: What is itself the reason why it cannot be started with `--in-life`.
BARE = {
    "contract/test_process.py::test_a_forked_child_that_ends_frees_nothing": "a fork of a program runs its hooks too",
    "processes/test_migrate.py::test_one_of_many_applies_what_is_pending": "a program of its own forks the commands",
    "processes/test_migrate.py::test_one_of_many_migrates_an_empty_database": "the same",
    "processes/test_supervisor.py::test_a_failure_is_recorded_with_its_traceback_and_logged_once": "the log has it too",
    "processes/test_schedules.py::test_of_six_servers_that_fire_for_a_slot_at_once_one_runs_it": "each says `ready`",
    "contract/test_contention.py::test_processes_that_all_want_it_never_overlap_and_never_fail": "forks have no pool",
    "contract/test_contention.py::test_a_stop_hits_what_it_names_or_nothing": "the same",
    "contract/test_takeover.py::test_of_many_processes_one_takes_over": "the same",
    "contract/test_surroundings.py::test_a_database_that_is_down_is_an_error_and_not_held": "the pool says so too",
    "processes/test_hung_database.py::test_in_a_worker_that_runs": "its tracing prints",
    "processes/test_sick_servers.py::test_slots_one_offs_and_tasks_run_on_the_healthy_worker": "its tracing fails",
    "processes/test_sick_servers.py::test_a_shell_command_runs_on_the_healthy_server": "the same",
    "processes/test_wrong_set_ups.py::test_a_lock_that_may_not_be_deleted_is_left_to_expire": "the log has it too",
    "processes/test_crontab_line.py::test_the_exit_status_shows_the_outcome": "the log has tracebacks",
    "processes/test_left_behind.py::test_a_command_that_has_no_name_is_not_found": "the same",
    "processes/test_shell_jobs.py::test_the_traceback_of_a_failure_is_appended_too": "the same",
    "processes/test_worker_drain.py::test_two_that_drain_at_once_run_everything_due_once_and_both_end": "the same",
    "processes/test_not_begun.py::test_a_process_that_was_forked_and_has_no_memory_is_no_second_command": "threads",
    "processes/test_program_lines.py::test_a_slow_hook_is_a_part_of_the_run_and_changes_no_status": "the same",
    "processes/test_program_lines.py::test_a_signal_during_the_hook_of_a_run_interrupts_the_run": "the same",
    "processes/test_program_lines.py::test_a_program_may_map_the_exit_status_unless_it_has_forked": "the same",
    "processes/test_containers.py::test_a_job_that_gets_no_process_or_no_thread_is_not_begun": "its tracing gets none",
    "processes/test_containers.py::test_nor_is_a_shell_command": "the same",
    "processes/test_containers.py::test_nor_is_a_one_off_which_another_server_runs": "the same",
    "processes/test_terminals.py::test_no_command_fails_because_a_terminal_lacks_a_character": "its log fails",
    "processes/test_terminals.py::test_if_the_command_is_interrupted_the_line_is_given_back": "its log is long",
    "processes/test_wrong_set_ups.py::test_each_command_says_in_one_line_what_is_wrong_and_what_to_do": "Python warns",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and each test everywhere")
    parser.addoption("--in-life", action="store_true", help="start each process with what real projects have at once")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_database(*names): run the test only on these databases")
    config.addinivalue_line("markers", "long: load, random rounds, searches and grids, which run only with --long")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what has no test for this server."""
    database = config.getoption("--database")
    if database == "sqlite" or config.getoption("--long") or collection_path.suffix != ".py":
        return None
    is_everywhere = is_below(collection_path.relative_to(TESTS).as_posix(), EVERYWHERE)
    names_it = re.search(rf'on_database\([^)]*"{database}"', collection_path.read_text())
    return None if is_everywhere or names_it or is_given(collection_path, config) else True


def is_given(path: Path, config: pytest.Config) -> bool:
    """Whether the command line names this file, or tests in it."""
    return any(Path(config.invocation_params.dir, each.partition("::")[0]) == path for each in config.args)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        place = place_of(item)
        for mark, places in (("long", LONG), ("slow", SLOW)):
            if is_below(place, places):
                item.add_marker(mark)
        if SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")
    leave_rows_out(items)
    kept = [item for item in items if is_selected(item, config)]
    if left_out := {*items} - {*kept}:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = kept


def leave_rows_out(items: list[pytest.Item]) -> None:
    """Mark rows of `GRIDS` as long."""
    grids = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if is_below(place_of(item), GRIDS) and is_selected(item, item.config) and not is_given(item.path, item.config):
            grids[place_of(item)].append(item)
    for place, rows in grids.items():
        every = GRIDS[max((grid for grid in GRIDS if is_below(place, [grid])), key=len)]
        # The same ones in any order of the tests, and of each parameter several values.
        for item in sorted(rows, key=lambda row: crc32(row.nodeid.encode()))[-(-len(rows) // every) :]:
            if len(rows) > 2:
                item.add_marker("long")


def place_of(item: pytest.Item) -> str:
    """Its module and its name, as in the tables above."""
    return item.nodeid.removeprefix("tests/").partition("[")[0]


def is_below(place: str, places: Iterable[str]) -> bool:
    return any(place == each or place.startswith((f"{each}/", f"{each}::")) for each in places)


def is_selected(item: pytest.Item, config: pytest.Config) -> bool:
    if config.getoption("--in-life") and is_below(place_of(item), BARE):
        return False
    database = config.getoption("--database")
    named = [mark.args for mark in item.iter_markers("on_database")]
    if any(database not in names for names in named):
        return False
    if config.getoption("--long"):
        return True
    if item.get_closest_marker("long"):
        return False
    return database == "sqlite" or bool(named) or runs_everywhere(item)


def runs_everywhere(item: pytest.Item) -> bool:
    place = place_of(item)
    is_chosen = is_below(place, EVERYWHERE) and not is_below(place, ONCE)
    return uses_database(item) and (is_chosen or is_given(item.path, item.config))


def uses_database(item: pytest.Item) -> bool:
    is_marked = item.get_closest_marker("django_db") is not None
    return is_marked or bool(DATABASE_FIXTURES & {*getattr(item, "fixturenames", ())})


def is_granted_both_ways(metafunc: pytest.Metafunc) -> bool:
    """Whether the test is run with single statements as well."""
    config = metafunc.config
    if config.getoption("--database") != "postgresql" or "single_statement" not in metafunc.fixturenames:
        return False
    place = metafunc.definition.nodeid.removeprefix("tests/")
    return config.getoption("--long") or is_below(place, GRANTS)
