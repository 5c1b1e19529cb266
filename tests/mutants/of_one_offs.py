"""The mutants of one-offs: those that wait only once, those that are inserted by one statement, and tasks that are
retried."""

from __future__ import annotations

from tests.mutants.copies import Edit
from tests.mutants.mutant import SERVERS, WITH_TASKS, Mutant, Witness

AT_ONCE = "django_singlejob/tasks/at_once.py"
BACKEND = "django_singlejob/tasks/backend.py"
BATCHES = "django_singlejob/tasks/batches.py"
ENQUEUE = "django_singlejob/running/enqueue.py"
ONE_OFFS = "django_singlejob/models/one_offs.py"
RETRIES = "django_singlejob/tasks/retries.py"
UNIQUE = "django_singlejob/tasks/unique.py"

AT_ONCE_TESTS = "tests/running/test_insert.py"
RETRIED_TESTS = "tests/contract/test_retried_tasks.py"
UNIQUE_TESTS = "tests/contract/test_unique.py"

POSTGRESQL = ("postgresql",)

OF_UNIQUE_ONES = (
    Mutant(
        name="unique-row-only-read",
        breaks="A request finds the row that waits, and leaves it free to begin before the caller's commit.",
        edits=(Edit(UNIQUE, "if seen and of_these.update(**_changes(columns)) == len(seen):", "if seen:"),),
        tests=(
            Witness(f"{UNIQUE_TESTS}::test_a_second_request_returns_the_one_that_waits"),
            Witness(
                f"{UNIQUE_TESTS}::test_what_a_transaction_has_asked_for_is_not_begun_before_its_commit",
                SERVERS,
            ),
        ),
    ),
    Mutant(
        name="unique-when-the-last-one-says",
        breaks="A request for later puts off the row that somebody needs sooner.",
        edits=(
            Edit(
                UNIQUE,
                '"run_after": Case(When(run_after__gt=run_after, then=run_after), default=F("run_after")),',
                '"run_after": run_after,',
            ),
        ),
        tests=(Witness(f"{UNIQUE_TESTS}::test_it_runs_as_early_and_as_urgently_as_anybody_asked"),),
    ),
    Mutant(
        name="unique-as-urgent-as-the-last-one-says",
        breaks="A request of a lower priority takes the higher one from the row that waits.",
        edits=(
            Edit(
                UNIQUE,
                'Greatest(F("priority"), Value(columns["priority"], SmallIntegerField()))',
                'Value(columns["priority"], SmallIntegerField())',
            ),
        ),
        tests=(Witness(f"{UNIQUE_TESTS}::test_it_runs_as_early_and_as_urgently_as_anybody_asked"),),
    ),
    Mutant(
        name="unique-in-the-order-of-the-calls",
        breaks="Two callers that need the same rows wait for each other.",
        edits=(
            Edit(
                UNIQUE,
                'sorted({call.unique_key: call for call in calls}.values(), key=attrgetter("unique_key"))',
                "list({call.unique_key: call for call in calls}.values())",
            ),
        ),
        tests=(Witness(f"{UNIQUE_TESTS}::test_those_of_many_are_asked_for_in_one_order", SERVERS),),
        may_hang=True,
    ),
    Mutant(
        name="unique-by-the-text-as-it-is",
        breaks="The key of a row is the text, which some databases compare without regard to capital letters.",
        edits=(Edit(ENQUEUE, 'return f"{digest[:32]} {text}".rstrip()', "return text or digest"),),
        tests=(Witness(f"{UNIQUE_TESTS}::test_what_differs_waits_beside_it"),),
    ),
)

OF_THOSE_AT_ONCE = (
    Mutant(
        name="at-once-in-half-a-transaction",
        breaks="After a statement that failed, the caller's transaction goes on, and is committed.",
        edits=(
            Edit(
                AT_ONCE,
                "caller = transaction.atomic(using=alias, savepoint=False) if connection.in_atomic_block else ",
                "caller = ",
            ),
        ),
        tests=(
            Witness(
                f"{AT_ONCE_TESTS}::test_a_transaction_in_which_the_only_statement_failed_is_rolled_back", POSTGRESQL
            ),
        ),
    ),
    Mutant(
        name="at-once-on-a-dead-connection",
        breaks="After a statement that failed with its connection, the next one is tried on the same connection.",
        edits=(
            Edit(
                AT_ONCE,
                "if connection.in_atomic_block else closed_if_lost(alias)",
                "if connection.in_atomic_block else transactions.in_turn(alias)",
            ),
        ),
        tests=(Witness(f"{AT_ONCE_TESTS}::test_the_next_one_opens_a_new_connection", POSTGRESQL),),
    ),
    Mutant(
        name="at-once-and-perhaps-lost",
        breaks="A row is acknowledged before it is on disk, if the role is set up like that.",
        edits=(Edit(AT_ONCE, "with caller, transactions.synchronous(alias, is_statement=True), ", "with caller, "),),
        tests=(
            Witness("tests/contract/test_durable.py::test_an_order_that_stands_alone_is_durable", POSTGRESQL),
            Witness("tests/contract/test_durable.py::test_many_orders_are_durable", POSTGRESQL),
        ),
    ),
    Mutant(
        name="at-once-however-many",
        breaks="One statement has all calls, however long their arguments are together.",
        edits=(
            Edit(
                AT_ONCE,
                " or has_expression or len([*in_batches(calls)]) > 1:",
                " or has_expression:",
            ),
        ),
        tests=(
            Witness(
                f"{AT_ONCE_TESTS}::test_a_statement_is_hardly_longer_than_for_one_with_the_longest_arguments",
                POSTGRESQL,
            ),
        ),
    ),
    Mutant(
        name="at-once-with-expressions",
        breaks="A column that only the database can compute is sent as a value.",
        edits=(
            Edit(
                AT_ONCE,
                'connection.vendor != "postgresql" or has_expression or len',
                'connection.vendor != "postgresql" or len',
            ),
        ),
        tests=(Witness(f"{AT_ONCE_TESTS}::test_other_columns_may_be_values_and_expressions", POSTGRESQL),),
    ),
)

OF_RETRIED_TASKS = (
    Mutant(
        name="retried-whatever-it-raises",
        breaks="A task is retried after any exception, not only after those that it names.",
        edits=(Edit(RETRIES, " if isinstance(failure, self.on) else None", ""),),
        tests=(
            Witness(f"{RETRIED_TESTS}::test_another_exception_than_those_named_is_the_end", WITH_TASKS),
            Witness(f"{RETRIED_TESTS}::test_by_default_only_an_exception_is_retried", WITH_TASKS),
        ),
    ),
    Mutant(
        name="retried-as-often-as-it-may-die",
        breaks="A task has as many attempts as the settings allow for deaths, however many retries it wants.",
        edits=(Edit(BACKEND, "return max(most, retries.retries + 1) if retries else most", "return most"),),
        tests=(Witness(f"{RETRIED_TESTS}::test_it_begins_as_often_as_deaths_or_retries_allow", WITH_TASKS),),
    ),
    Mutant(
        name="retried-at-once",
        breaks="A task that is retried does not wait for that.",
        edits=(Edit(BATCHES, '{**AGAIN, "run_after": DBNow() + self.retry_in}', "{**AGAIN}"),),
        tests=(
            Witness(f"{RETRIED_TESTS}::test_it_waits_for_each_retry_twice_as_long_and_then_has_failed", WITH_TASKS),
        ),
    ),
    Mutant(
        name="retried-although-stopped",
        breaks="A task that a user has stopped waits for its retry.",
        edits=(Edit(BATCHES, "return None if delay is None or stopped_by(self.row) else delay", "return delay"),),
        tests=(
            Witness(f"{RETRIED_TESTS}::test_one_that_a_user_has_stopped_has_failed_whatever_it_raises", WITH_TASKS),
        ),
    ),
    Mutant(
        name="retried-although-stopped-in-that-moment",
        breaks="A task that a user stops just before its end is recorded waits for its retry.",
        edits=(
            Edit(
                BATCHES,
                '{**AGAIN, "run_after": DBNow() + self.retry_in}',
                '{**AGAIN, "status": "waiting", "finished_at": None, "run_after": DBNow() + self.retry_in}',
            ),
        ),
        tests=(
            Witness(
                f"{RETRIED_TESTS}::test_one_that_is_stopped_just_before_its_end_is_recorded_does_not_begin_again",
                WITH_TASKS,
            ),
        ),
    ),
    Mutant(
        name="retried-for-a-result",
        breaks="A task whose result cannot be stored is run again, though it has done its work.",
        edits=(
            Edit(
                BATCHES,
                "            self._retries = retries if retries and TypeError in retries.on else None\n",
                "",
            ),
        ),
        tests=(
            Witness(f"{RETRIED_TESTS}::test_a_result_that_cannot_be_stored_is_retried_only_if_it_is_named", WITH_TASKS),
        ),
    ),
)

OF_ONE_OFFS = (*OF_UNIQUE_ONES, *OF_THOSE_AT_ONCE, *OF_RETRIED_TASKS)
