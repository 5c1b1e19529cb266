"""Which tests run where: a pytest plugin with the option `--long` and the marks `on_database`, `long` and `timing`.

A test that touches no database runs once, on SQLite. So do those in `ONCE`, because what they are about does not depend
on the database, unless they name databases themselves. What is `long` runs only with `--long`. What is `timing` counts
on a machine that has nothing else to do, so it runs after the others, one test at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

#: Paths below tests/, or the nodes of tests, and why one database suffices. The longest that fits a test counts; ""
#: means all databases.
ONCE = {
    "admin": "pages are Django's templates; what they ask the database is tested with queries, one-offs and the day",
    "admin/test_admin_day.py": "",
    "admin/test_admin_one_offs.py": "",
    "admin/test_admin_queries.py": "",
    "browser": "pages are the same",
    "contract/test_catch_up.py::test_a_tick_costs_the_same_whatever_the_number_of_jobs_that_are_not_due": "counts",
    "contract/test_interruption.py": "signals and threads",
    "locking/test_heartbeat.py": "threads",
    "locking/test_keeper.py": "threads",
    "management/test_hostile_rows.py": "a grid of hostile values",
    "monitoring/test_verdict.py::test_it_takes_as_many_queries_however_much_there_is": "counts",
    "overlap": "processes and signals",
    "recipes/test_jobs_recipes.py": "recipes; what they promise is tested where it is built",
    "recipes/test_jobs_recipes.py::test_a_holder_that_lost_its_lock_writes_nothing": "",
    "running/test_tasks_api.py": "imports",
    "running/test_values.py": "a grid of hostile values",
    "processes/test_crontab_line.py": "the shell's part of the wrapper",
    "processes/test_flock.py": "the shell's part of the wrapper",
    "processes/test_interrupts.py": "signals",
    "processes/test_left_behind.py": "the shell's part of the wrapper",
    "processes/test_signal_rounds.py": "signals",
    "processes/test_terminals.py": "terminals",
    "models/test_runs.py::test_any_number_of_jobs_may_have_some": "SQLite's limit",
    "test_example_project.py": "the example",
    "process/test_received_signals.py": "signals",
    "worker/test_batches.py::test_many_that_nobody_knows_take_few_queries": "counts",
}
#: Paths below tests/, or the nodes of tests: load, random rounds, searches and grids.
LONG = {
    "chaos/test_chaos.py::test_ctrl_c_ends_it_early_and_it_judges_what_there_is",
    "chaos/test_chaos.py::test_if_nothing_goes_wrong_nothing_is_found_and_nothing_is_left",
    "clusters/test_galera.py::test_nothing_is_lost_or_doubled_with_a_node",
    "contract/test_hidden_meanwhile.py",
    "model/test_model.py::test_the_model_follows_what_the_real_code_does_now",
    "model/test_model.py::test_the_model_is_as_expected",
    "mutants/test_mutants.py::test_each_named_test_is_one_of_those_that_ci_runs_there",
    "running/test_values.py::test_a_huge_value_is_refused_without_a_look_at_all_of_it",
    "processes/test_interrupts.py::test_a_plain_script_that_is_interrupted_at_a_random_moment_releases_at_exit",
    "processes/test_interrupts.py::test_no_signal_at_a_random_moment_leaves_a_lock",
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
}
#: Paths below tests/, or the nodes of tests: what takes long without a mark of its own.
SLOW = {
    "browser",
    "clusters",
    "management/test_hostile_rows.py",
    "management/test_startup.py::test_run_singleton_imports_nothing_that_only_others_need",
    "monitoring/test_verdict.py::test_each_finding_has_a_link_to_where_something_can_be_done",
    "monitoring/test_verdict.py::test_the_command_and_the_admin_say_the_same",
    "running/test_enqueue.py::test_a_worker_outlives_what_was_written_by_hand",
    "running/test_values.py::test_the_arguments_together_have_the_same_length",
    "overlap",
    "processes",
    "jobs/test_slots.py::TestSeveral::test_it_may_be_as_early_as_an_instant_can_be",
    "simulation/test_simulation.py::test_each_scenario_comes_to_its_end",
}
#: So do tests that start processes.
SLOW_FIXTURES = {"child_env", "proxy"}
#: They test signals and heartbeats at their time, or drop databases, for which a server waits for all of its sessions.
TIMING = {
    "processes/test_ci_run.py",
    "processes/test_interrupts.py",
    "processes/test_signal_rounds.py",
    "test_databases.py::test_it_is_dropped_whichever_test_of_a_worker_is_the_last",
    "process/test_received_signals.py",
}
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
    "processes/test_schedules.py::test_of_six_servers_that_fire_for_a_slot_at_once_one_runs_it": "each says `ready`",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too, and each test everywhere")
    parser.addoption("--in-life", action="store_true", help="start each process with what real projects have at once")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_database(*names): run the test only on these databases")
    config.addinivalue_line("markers", "long: load, random rounds, searches and grids, which run only with --long")
    config.addinivalue_line("markers", "timing: counts on an idle machine, so it runs after the others, alone")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        place = place_of(item)
        for mark, places in (("long", LONG), ("slow", SLOW), ("timing", TIMING)):
            if is_below(place, places):
                item.add_marker(mark)
        if SLOW_FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")
    kept = [item for item in items if is_selected(item, config)]
    if left_out := {*items} - {*kept}:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = kept


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
    return database == "sqlite" or bool(named) or not runs_once(item)


def runs_once(item: pytest.Item) -> bool:
    place = place_of(item)
    reasons = [ONCE[path] for path in sorted(ONCE, key=len) if is_below(place, [path])]
    return bool(reasons and reasons[-1]) or not uses_database(item)


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
