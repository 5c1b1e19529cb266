"""The mutants of executors: what they leave to the next run, and how a run that has not begun is given back."""

from __future__ import annotations

from tests.mutants.copies import Edit
from tests.mutants.mutant import ONCE, Mutant, Witness

LEFTOVERS = "django_singlejob/running/leftovers.py"
ONE_OFFS = "django_singlejob/models/one_offs.py"
ORDER = "django_singlejob/running/order.py"
RELEASE = "django_singlejob/locking/release.py"
SERVING = "django_singlejob/running/serving.py"
SUPERVISOR = "django_singlejob/running/supervisor.py"

LEAVES = "tests/life/test_life.py::test_after_one_that_leaves_something_the_next_gets_a_new_process"
NOT_BEGUN = "tests/processes/test_not_begun.py"

OF_EXECUTORS = (
    Mutant(
        name="executor-kept-with-a-hook",
        breaks="The next run gets the process of one that has registered something for the exit.",
        edits=(Edit(LEFTOVERS, "self._hooks.are_more()", "False"),),
        tests=(Witness(f"{LEAVES}[leaves_a_hook]", ONCE),),
    ),
    Mutant(
        name="executor-kept-with-an-open-file",
        breaks="The next run gets the process of one that has not written its file yet.",
        edits=(Edit(LEFTOVERS, "self._has_open_file(),", "False,"),),
        tests=(Witness(f"{LEAVES}[leaves_a_file_open]", ONCE),),
    ),
    Mutant(
        name="executor-kept-with-a-thread",
        breaks="The next run gets the process of one whose thread goes on.",
        edits=(
            Edit(
                LEFTOVERS,
                "for thread in now.threads - before.threads)",
                "for thread in now.threads - before.threads if thread.daemon)",
            ),
        ),
        tests=(Witness(f"{LEAVES}[leaves_a_thread]", ONCE),),
    ),
    Mutant(
        name="executor-kept-elsewhere",
        breaks="The next run finds itself in the directory that the last one has changed to.",
        edits=(Edit(LEFTOVERS, '_GROWING = ("threads",', '_GROWING = ("directory", "threads",'),),
        tests=(Witness(f"{LEAVES}[changes_the_directory]", ONCE),),
    ),
    Mutant(
        name="executor-kept-though-silenced",
        breaks="The next run logs nothing, because the last one has disabled that.",
        edits=(Edit(LEFTOVERS, '_GROWING = ("threads",', '_GROWING = ("disabled_level", "threads",'),),
        tests=(Witness(f"{LEAVES}[disables_logging]", ONCE),),
    ),
    Mutant(
        name="executor-kept-with-its-context",
        breaks="What a body sets for its context, such as a language, is there for the next one.",
        edits=(Edit(SERVING, "value = contextvars.copy_context().run(call)", "value = call()"),),
        tests=(Witness("tests/processes/test_supervisor.py::test_what_a_run_leaves_reaches_no_other", ONCE),),
    ),
    Mutant(
        name="dead-executor-costs-the-run",
        breaks="A run whose process died while that waited for an order is given back, and not begun by another one.",
        edits=(Edit(SUPERVISOR, "was_idle=was_idle and not is_by_signal", "was_idle=False"),),
        tests=(
            Witness(
                "tests/processes/test_kept_executors.py::test_one_that_dies_before_it_has_heard_its_order_costs_no_run",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="executor-of-another-release",
        breaks="A process of another version of the package carries out orders.",
        edits=(Edit(SERVING, "if invitation.version != django_singlejob.__version__:", "if not invitation.version:"),),
        tests=(
            Witness(
                f"{NOT_BEGUN}::"
                "test_nor_is_a_run_begun_by_another_release[upgrade-This process has django-singlejob 9.0]",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="retry-without-its-slot",
        breaks="The body of a retry does not know its slot.",
        edits=(Edit(ORDER, "one_off=None, slot=grant.slot_of_run)", "one_off=None)"),),
        tests=(Witness("tests/processes/test_slots_of_retries.py::test_a_retry_knows_the_slot", ONCE),),
    ),
    Mutant(
        name="not-begun-uses-the-one-off-up",
        breaks="A one-off that has not begun has used an attempt.",
        edits=(
            Edit(
                ONE_OFFS,
                '= {**AGAIN, "attempt": Greatest(F("attempt"), Value(1)) - 1}',
                '= {**AGAIN, "attempt": F("attempt")}',
            ),
        ),
        tests=(Witness(f"{NOT_BEGUN}::test_a_pass_gives_a_one_off_back_and_another_server_runs_it", ONCE),),
    ),
    Mutant(
        name="not-begun-is-a-run",
        breaks="A run that has not begun stays in the history.",
        edits=(Edit(RELEASE, "            history.write(partial(runs().forget, self._token))\n", ""),),
        tests=(Witness(f"{NOT_BEGUN}::test_a_slot_is_given_back_with_its_only_attempt", ONCE),),
    ),
    Mutant(
        name="not-begun-for-want-of-a-process",
        breaks="If the system has no process for it, the job has failed.",
        edits=(
            Edit(
                SUPERVISOR,
                'raise NotBegun(f"No process could be started for it: {error}") from error',
                "raise",
            ),
        ),
        tests=(Witness(f"{NOT_BEGUN}::test_a_system_without_processes_is_no_failure_of_the_job", ONCE),),
    ),
)
