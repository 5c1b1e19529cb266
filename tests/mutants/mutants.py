"""The mutants, and the tests that have to notice each of them. Those of the rooms around the kernel, and of executors,
have tables of their own."""

from __future__ import annotations

from tests.mutants.copies import Edit
from tests.mutants.mutant import ONCE, SERVERS, WITH_TASKS, Mutant, Simulation, Witness
from tests.mutants.of_executors import OF_EXECUTORS
from tests.mutants.of_one_offs import OF_ONE_OFFS
from tests.mutants.of_rooms import OF_ROOMS

ACQUIRE = "django_singlejob/locking/acquire.py"
AT_EXIT = "django_singlejob/locking/at_exit.py"
BATCHES = "django_singlejob/tasks/batches.py"
BLOCK = "django_singlejob/running/decorators.py"
CLOCK = "django_singlejob/process/clock.py"
CLEAR = "django_singlejob/locking/clear.py"
CLEARING = "django_singlejob/admin/clearing.py"
DATABASE = "django_singlejob/database/transactions.py"
DUE = "django_singlejob/worker/due.py"
ENDINGS = "django_singlejob/locking/endings.py"
GATES = "django_singlejob/models/jobs.py"
GRANT = "django_singlejob/locking/grant.py"
GUARD = "django_singlejob/running/guard.py"
GUARDED = "django_singlejob/running/guarded.py"
HEARTBEAT = "django_singlejob/locking/heartbeat.py"
LEASE = "django_singlejob/locking/lease.py"
LIVENESS = "django_singlejob/locking/liveness.py"
LOCKS = "django_singlejob/models/locks.py"
ONE_OFFS = "django_singlejob/models/one_offs.py"
POSITION = "django_singlejob/locking/position.py"
RECORDING = "django_singlejob/locking/recording.py"
RELEASE = "django_singlejob/locking/release.py"
ROWS = "django_singlejob/models/rows.py"
RUNNER = "django_singlejob/running/runner.py"
RUNS = "django_singlejob/models/runs.py"
SCHEDULES = "django_singlejob/control/schedules.py"
SHARED = "django_singlejob/running/shared.py"
SINGLE = "django_singlejob/single_statement.py"
CHILD = "django_singlejob/running/in_child.py"
SERVING = "django_singlejob/running/serving.py"
SLOTS = "django_singlejob/jobs/slots.py"
SUPERVISOR = "django_singlejob/running/supervisor.py"
WATCH = "django_singlejob/running/watch.py"

OWN_TESTS = "tests/contract/test_own_schedule.py"
SINGLE_TESTS = "tests/test_single_statement.py"
EACH_WRITE = "tests/contract/test_loss.py::test_each_write_on_its_own_finds_nothing_of_the_successors"
MEETS = "tests/contract/test_loss.py::test_a_heartbeat_that_comes_at_the_same_moment_finds_nothing"

_RENEW = """        return self.filter(name=name, token=token, **unmarked).update(**changes) == 1
"""
_RENEW_BY_SAVE = """        row = self.filter(name=name, token=token).first()
        if row is None:
            return False
        row.heartbeats, row.sent_at = row.heartbeats + 1, max(row.sent_at, sent_at)
        row.heartbeat_at, row.expires_at = DBNow(), DBNow() + lease
        row.save()
        return True
"""
_NOW = """    output_field = DateTimeField()

    def as_mysql(
        self, compiler: "SQLCompiler", connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        return "UTC_TIMESTAMP(6)", ()
"""
_NOW_OF_THE_SERVER = """    output_field = DateTimeField()

    def as_mysql(
        self, compiler: "SQLCompiler", connection: BaseDatabaseWrapper, **context: Any
    ) -> tuple[str, tuple[str | int, ...]]:
        now = connection.ops.adapt_datetimefield_value(utc_now())
        return "CAST(%s AS timestamptz)" if connection.vendor == "postgresql" else "%s", (now,)

    as_postgresql = as_sqlite = as_mysql
"""

#: The ten that any protocol of this kind has to survive.
OF_THE_PROTOCOL = (
    Mutant(
        name="no-fence-condition",
        breaks="A caller passes the gate whatever its fence is by now.",
        edits=(
            Edit(
                GATES,
                'for name in ("name", "fence", "schedule", "time_zone")})',
                'for name in ("name", "schedule", "time_zone")})',
            ),
        ),
        tests=(
            Witness("tests/locking/test_grant.py::test_the_faster_caller_at_the_gate_wins"),
            Witness("tests/contract/test_fence.py::test_a_grant_in_between_is_never_given_the_same_fence"),
        ),
        simulation="Not found in 60 schedules of `lock` on one host.",
    ),
    Mutant(
        name="no-gate",
        breaks="The lock's row alone is written: no caller passes the gate.",
        edits=(
            Edit(
                GRANT,
                "        if snapshot.lock:\n            return",
                "        return True\n        if snapshot.lock:\n            return",
            ),
        ),
        tests=(
            Witness("tests/locking/test_grant.py::test_each_way_leads_in_once"),
            Witness("tests/contract/test_fence.py::test_what_is_written_behind_the_fence_is_committed"),
        ),
        simulation=Simulation("lock", "one_host", 60),
    ),
    Mutant(
        name="release-by-name",
        breaks="A release deletes the lock's row and ends its run by the name, whatever the tokens are.",
        edits=(
            Edit(
                LOCKS,
                "return delete_rows(self.filter(name=name, token=token))",
                "return delete_rows(self.filter(name=name))",
            ),
            Edit(
                GATES,
                "return self.passed(name, token).update(**changes)",
                "return self.filter(name=name).update(**changes)",
            ),
        ),
        tests=(
            Witness(f"{EACH_WRITE}[release]"),
            Witness("tests/contract/test_loss.py::test_a_job_that_was_robbed_raises_and_its_run_stays_abandoned"),
        ),
        simulation="Not found in 60 schedules of `force` on one host.",
    ),
    Mutant(
        name="renew-by-name",
        breaks="A heartbeat renews the row of the lock's name, whatever its token is.",
        edits=(
            Edit(
                LOCKS,
                "return self.filter(name=name, token=token, **unmarked).update(",
                "return self.filter(name=name, **unmarked).update(",
            ),
        ),
        tests=(
            Witness(f"{EACH_WRITE}[renew]"),
            Witness("tests/contract/test_loss.py::test_who_was_robbed_changes_nothing_of_the_successors_and_is_told"),
        ),
        simulation="Not found in 100 schedules of `force` on one host.",
    ),
    Mutant(
        name="renew-by-save",
        breaks="A heartbeat reads the row and calls save(), which writes all of its columns.",
        edits=(Edit(LOCKS, _RENEW, _RENEW_BY_SAVE + _RENEW),),
        tests=(
            Witness(f"{MEETS}[takeover]"),
            Witness(f"{MEETS}[clear]"),
        ),
        simulation="On SQLite the heartbeat is the only writer, so the row cannot change between the read and save().",
    ),
    Mutant(
        name="application-clock-alone",
        breaks="Each server's own clock replaces the database's.",
        edits=(Edit(CLOCK, _NOW, _NOW_OF_THE_SERVER),),
        tests=(
            Witness("tests/process/test_clock.py::test_it_is_the_servers_clock_in_utc"),
            Witness("tests/contract/test_takeover.py::test_a_servers_clock_makes_no_lease_longer_or_shorter"),
        ),
        simulation="Not found in 40 schedules of `job` on servers.",
    ),
    Mutant(
        name="takeover-on-expiry-alone",
        breaks="A stale lock is taken over at once, without a watch.",
        edits=(Edit(LIVENESS, "        return max(to_watch, to_pass, ZERO)\n", "        return ZERO\n"),),
        tests=(
            Witness(
                "tests/contract/test_takeover.py::test_a_holder_with_an_expired_row_that_sends_heartbeats_keeps_its_lock"
            ),
            Witness("tests/contract/test_takeover.py::test_each_heartbeat_begins_the_watch_anew"),
        ),
        simulation=Simulation("lock", "servers", 40),
    ),
    Mutant(
        name="session-local-now",
        breaks="On MariaDB and MySQL, Now() is the session's local time, as Django's is.",
        edits=(Edit(CLOCK, '"UTC_TIMESTAMP(6)"', '"CURRENT_TIMESTAMP(6)"'),),
        tests=(Witness("tests/process/test_clock.py::test_it_is_the_servers_clock_in_utc", ("mysql",)),),
        simulation="The simulation runs on SQLite, where sessions have no time zones.",
    ),
    Mutant(
        name="no-ownership-check-after-a-cut-commit",
        breaks="After a COMMIT without an answer, a row with our token counts as another holder's.",
        edits=(Edit(ACQUIRE, "if lock and lock.token in self._in_doubt:", "if lock and False:"),),
        tests=(
            Witness("tests/locking/test_acquire.py::test_a_holder_that_still_has_the_lock_then_renews_its_lease"),
            Witness("tests/processes/test_outages.py::test_a_grant_whose_answer_is_cut_off_is_ours", SERVERS),
        ),
        simulation="The caller is refused because of its own row, and deletes it: no refusal is judged that has a row.",
    ),
    Mutant(
        name="no-pid-check",
        breaks="A forked child takes its parent's lease for its own.",
        edits=(Edit(LEASE, "return os.getpid() != self._pid", "return False"),),
        tests=(
            Witness("tests/locking/test_lease.py::TestLease::test_a_child_process_holds_nothing"),
            Witness("tests/contract/test_process.py::test_a_forked_child_cannot_use_the_lease"),
            Witness("tests/contract/test_process.py::test_a_forked_child_that_ends_frees_nothing"),
        ),
        simulation="Simulated processes are threads, which cannot be forked.",
    ),
)

#: The repairs of the cases in which two faults met, reverted one by one.
REVERTED_REPAIRS = (
    Mutant(
        name="infinite-deadline-inside-a-fenced-block",
        breaks="On a server, a holder trusts itself for as long as its fenced transaction is open.",
        edits=(
            Edit(
                LEASE,
                "        with self._entered(alias):\n            yield\n",
                "        self._own_transaction = lambda: True\n        with self._entered(alias):\n            yield\n"
                "            self._own_transaction = None\n",
            ),
        ),
        tests=(
            Witness(
                "tests/contract/test_fence.py::test_a_holder_that_sends_no_heartbeats_distrusts_itself_inside_the_block_too",
                SERVERS,
            ),
            Witness(
                "tests/processes/test_two_faults.py::test_a_holder_whose_session_is_ended_while_it_is_cut_off_does_not_trust_itself_beside_its_successor[fenced]",
                SERVERS,
            ),
        ),
        simulation=Simulation("long_blocks", "servers", 20),
    ),
    Mutant(
        name="no-lease-has-to-pass",
        breaks="A takeover needs a watch of two intervals, but not that a lease has passed by another clock.",
        edits=(
            Edit(
                LIVENESS,
                "    return min(_left_by_clocks(lock), _lease_and_margin(lock) - unchanged)\n",
                "    return ZERO\n",
            ),
        ),
        tests=(
            Witness("tests/locking/test_liveness.py::test_a_databases_clock_that_is_set_ahead_robs_nobody", ONCE),
            Witness("tests/contract/test_takeover.py::test_a_step_of_the_databases_clock_robs_no_silent_holder"),
            Witness(
                "tests/processes/test_two_faults.py::test_a_holder_that_is_cut_off_outlives_a_step_of_the_databases_clock",
                SERVERS,
            ),
        ),
        simulation=Simulation("lock", "servers", 250),
    ),
    Mutant(
        name="impossible-row-is-not-suspected",
        breaks="A row from the future counts as live, so a dead holder blocks its lock until then.",
        edits=(
            Edit(LOCKS, "return self.filter(_STALE | _IMPOSSIBLE)", "return self.filter(_STALE)"),
            Edit(LOCKS, "return self.is_stale or self.is_impossible", "return self.is_stale"),
        ),
        tests=(
            Witness("tests/locking/test_liveness.py::test_a_databases_clock_that_is_set_back_blocks_no_lock", ONCE),
            Witness(
                "tests/contract/test_takeover.py::test_the_lock_of_a_dead_holder_is_not_blocked_by_a_clock_that_was_set_back"
            ),
        ),
        simulation=Simulation("deaths", "servers", 40),
    ),
    Mutant(
        name="gap-does-not-restart-the-watch",
        breaks="A watch goes on although the observer did not look for longer than an interval.",
        edits=(
            Edit(
                LIVENESS,
                "        elif gap > (_interval(lock) or timedelta.max):\n            self._watched_at = None\n",
                "",
            ),
        ),
        tests=(
            Witness("tests/locking/test_liveness.py::test_a_gap_longer_than_an_interval_restarts_it", ONCE),
            Witness("tests/contract/test_passes.py::test_who_could_not_be_watched_for_a_while_is_watched_anew"),
        ),
        simulation=Simulation("deaths", "servers", 40),
    ),
    Mutant(
        name="no-check-before-the-body",
        breaks="A body begins although the lease was over before it did.",
        edits=(
            Edit(RUNNER, "        self.lease.prove()\n        if self.mistake", "        if self.mistake"),
            Edit(
                RUNNER,
                "            await finished(self.lease.prove)\n",
                "            pass\n",
            ),
            Edit(BLOCK, "            answer.prove()\n", ""),
        ),
        tests=(
            Witness("tests/contract/test_loss.py::test_a_body_begins_past_the_deadline_only_if_the_lock_is_still_ours"),
            Witness("tests/contract/test_loss.py::test_so_does_an_async_one"),
            Witness("tests/contract/test_loss.py::test_so_does_a_block"),
        ),
        simulation=Simulation("late_starts", "servers", 10),
    ),
    Mutant(
        name="undecided-is-reported-as-held",
        breaks="An attempt that others blocked for seconds is reported as a lock that is held.",
        edits=(
            Edit(
                ACQUIRE,
                'return Refusal(Reason.UNDECIDED, detail=f"retried for',
                'return Refusal(Reason.HELD, detail=f"retried for',
            ),
        ),
        tests=(
            Witness(
                "tests/contract/test_fence.py::test_who_would_take_over_does_not_wait_for_the_end_of_a_fenced_transaction",
                SERVERS,
            ),
            Witness(
                "tests/processes/test_two_faults.py::"
                "test_an_attempt_that_others_block_comes_back_in_time_and_is_not_reported_as_held"
            ),
        ),
        simulation=Simulation("job", "servers", 40),
    ),
    Mutant(
        name="no-renewal-at-the-end-of-a-block",
        breaks="On SQLite, a fenced transaction does not end with a heartbeat.",
        edits=(Edit(LEASE, "                    self._renew_at_the_end()\n", ""),),
        tests=(
            Witness(
                "tests/contract/test_fence.py::test_a_transaction_of_three_leases_costs_a_healthy_holder_nothing",
                ("sqlite",),
            ),
            Witness("tests/contract/test_fence.py::test_a_block_without_its_row_commits_nothing", ("sqlite",)),
        ),
        simulation=Simulation("long_blocks", "one_host", 10),
    ),
    Mutant(
        name="deadline-suspended-beyond-the-block",
        breaks="On SQLite, the deadline does not count again before the COMMIT is sent, but only after its hooks.",
        edits=(
            Edit(
                LEASE,
                "            with self._entered(alias), self._writing_alone(alias):\n",
                "            with self._writing_alone(alias), self._entered(alias):\n"
                "                self._own_transaction = lambda: True\n",
            ),
        ),
        tests=(
            Witness(
                "tests/contract/test_only_writer.py::test_hooks_behind_the_commit_do_not_run_with_a_suspended_deadline",
                ("sqlite",),
            ),
        ),
        simulation=Simulation("long_blocks", "one_host", 30),
    ),
)

#: What else is easy to get wrong.
OTHERS = (
    Mutant(
        name="fenced-block-by-name",
        breaks="A fenced transaction does not compare the token of its gate.",
        edits=(
            Edit(
                GATES,
                "return self.passed(name, token).update(hold_count",
                "return self.filter(name=name).update(hold_count",
            ),
        ),
        tests=(
            Witness(f"{EACH_WRITE}[hold the gate]"),
            Witness("tests/contract/test_fence.py::test_who_was_robbed_writes_nothing"),
        ),
    ),
    Mutant(
        name="heartbeat-writes-the-gate",
        breaks="A heartbeat also changes the gate, so none gets through during a fenced transaction.",
        edits=(
            Edit(
                LEASE,
                "        return locks().renew(",
                "        gates().touch(self.name)\n        return locks().renew(",
            ),
        ),
        tests=(Witness("tests/contract/test_fence.py::test_heartbeats_pass_the_fence", SERVERS),),
    ),
    Mutant(
        name="takeover-ignores-heartbeats",
        breaks="A takeover or a clear does not demand that the count of heartbeats is as it was seen.",
        edits=(Edit(LOCKS, "token=seen.token, heartbeats=seen.heartbeats)", "token=seen.token)"),),
        tests=(Witness("tests/contract/test_takeover.py::test_one_sign_of_life_after_the_look_is_enough[heartbeats]"),),
    ),
    Mutant(
        name="takeover-of-a-live-row",
        breaks="The write that takes a lock over does not demand that the row is still suspected.",
        edits=(
            Edit(LOCKS, "return self._unchanged(seen).suspected().update(", "return self._unchanged(seen).update("),
        ),
        tests=(Witness("tests/contract/test_takeover.py::test_one_sign_of_life_after_the_look_is_enough[expires_at]"),),
    ),
    Mutant(
        name="fence-does-not-grow",
        breaks="A grant leaves the fence as it is.",
        edits=(
            Edit(
                GATES,
                "return max(self.fence, self.timeline << GRANT_BITS) + 1",
                "return max(self.fence, self.timeline << GRANT_BITS)",
            ),
        ),
        tests=(Witness("tests/contract/test_fence.py::test_the_fence_grows_whatever_becomes_of_the_lock"),),
    ),
    Mutant(
        name="fence-without-its-timeline",
        breaks="After a failover, fences go on from the last one that the new primary knows.",
        edits=(Edit(GATES, "return max(self.fence, self.timeline << GRANT_BITS) + 1", "return self.fence + 1"),),
        tests=(
            Witness(
                "tests/database/test_timeline.py::test_after_a_promotion_fences_go_on_far_above_those_that_it_lost",
                ("postgresql",),
            ),
        ),
    ),
    Mutant(
        name="grant-by-another-server",
        breaks="A gate that was seen before a failover is passed after it.",
        edits=(Edit(GATES, ".filter(Exact(Timeline(), seen.timeline))", ""),),
        tests=(
            Witness(
                "tests/database/test_timeline.py::test_a_server_that_was_promoted_since_the_look_grants_nothing_by_it",
                ("postgresql",),
            ),
        ),
    ),
    Mutant(
        name="no-rest-after-a-failover",
        breaks="A lock is granted right after a failover, before a holder from before it can find out.",
        edits=(
            Edit(ACQUIRE, "        if rest := self._rest_after_failover(snapshot.gate):", "        if rest := ZERO:"),
        ),
        tests=(
            Witness(
                "tests/locking/test_acquire.py::test_a_gate_from_before_a_failover_is_watched_for_two_heartbeat_intervals",
                ("postgresql",),
            ),
        ),
    ),
    Mutant(
        name="clear-on-another-server",
        breaks="A lock that was seen before a failover is cleared after it.",
        edits=(Edit(LOCKS, ".suspected().filter(on_this_server)", ".suspected()"),),
        tests=(
            Witness(
                "tests/locking/test_clear.py::test_what_was_seen_before_a_failover_is_not_cleared_after_it",
                ("postgresql",),
            ),
        ),
    ),
    Mutant(
        name="schedule-moves-outside-the-grant",
        breaks="A slot is claimed in a transaction of its own, before the lock is granted.",
        edits=(
            Edit(
                ACQUIRE,
                "        grant = Grant.of(self.request, uuid4(), planned, snapshot)\n",
                "        grant = Grant.of(self.request, uuid4(), planned, snapshot)\n"
                "        gates().filter(name=self.request.own_name).update(**planned.changes)\n",
            ),
            Edit(GRANT, "{**passed, **planned.changes}", "passed"),
            Edit(GRANT, "{**changes, **planned.changes}", "changes"),
            Edit(
                GATES,
                "        if seen.next_slot is None:\n            return rows.filter",
                "        return self.filter(name=seen.name, fence=seen.fence)\n"
                "        if seen.next_slot is None:\n            return rows.filter",
            ),
        ),
        tests=(
            Witness("tests/contract/test_claims.py::test_the_claim_stands_and_falls_with_the_grant"),
            Witness("tests/contract/test_claims.py::test_and_with_a_takeover"),
        ),
    ),
    Mutant(
        name="schedule-moves-on-whoever-was-faster",
        breaks="A schedule is moved past a slot although another caller has claimed it since.",
        edits=(
            Edit(
                GATES,
                "        rows = self.unchanged(seen)\n        if unless_due:",
                "        rows = self.filter(name=seen.name)\n        if unless_due:",
            ),
        ),
        tests=(
            Witness("tests/locking/test_position.py::test_each_is_one_conditional_write"),
            Witness("tests/locking/test_position.py::test_a_row_that_changed_since_it_was_seen_is_left"),
        ),
    ),
    Mutant(
        name="schedule-changes-over-a-slot-that-becomes-due",
        breaks="A slot that becomes due while its schedule is changed is dropped.",
        edits=(Edit(GATES, "rows = rows.exclude(next_slot__lte=DBNow())", "rows = rows.all()"),),
        tests=(
            Witness(f"{OWN_TESTS}::test_a_slot_that_becomes_due_in_that_moment_is_not_lost"),
            Witness(f"{OWN_TESTS}::test_nor_is_it_when_the_code_changes"),
        ),
    ),
    Mutant(
        name="code-changes-over-a-slot-that-becomes-due",
        breaks="A slot that becomes due while a worker follows the new code is dropped.",
        edits=(Edit(POSITION, "unless_due=bool(status.schedule)", "unless_due=False"),),
        tests=(Witness(f"{OWN_TESTS}::test_nor_is_it_when_the_code_changes"),),
    ),
    Mutant(
        name="edit-over-a-slot-that-becomes-due",
        breaks="A slot that becomes due while an operator gives the job another schedule is dropped.",
        edits=(Edit(SCHEDULES, "unless_due=is_moved", "unless_due=False"),),
        tests=(Witness(f"{OWN_TESTS}::test_a_slot_that_becomes_due_in_that_moment_is_not_lost"),),
    ),
    Mutant(
        name="edit-of-what-nobody-has-seen",
        breaks="An operator's schedule replaces another operator's, which was given meanwhile.",
        edits=(Edit(SCHEDULES, "    if Own.of(seen) != instead_of:\n        return False\n", ""),),
        tests=(Witness(f"{OWN_TESTS}::test_of_two_operators_the_second_has_seen_something_else"),),
    ),
    Mutant(
        name="edit-leaves-the-fence",
        breaks="A schedule is changed, but a claim by the row as it was before still succeeds.",
        edits=(
            Edit(
                GATES,
                "rows.update(fence=seen.fence + 1, hidden=False, **changes) == 1",
                "rows.update(hidden=False, **changes) == 1",
            ),
        ),
        tests=(
            Witness(f"{OWN_TESTS}::test_it_goes_on_at_the_next_slot_of_the_new_one"),
            Witness(f"{OWN_TESTS}::test_a_claim_by_the_row_as_it_was_before_an_edit_fails"),
        ),
    ),
    Mutant(
        name="schedule-changes-over-due-slots",
        breaks="Slots that are due do not keep the former schedule in force.",
        edits=(
            Edit(
                POSITION,
                "return bool(status.schedule and status.next_slot and status.next_slot <= status.now)",
                "return False",
            ),
            Edit(GATES, "rows = rows.exclude(next_slot__lte=DBNow())", "rows = rows.all()"),
        ),
        tests=(
            Witness(f"{OWN_TESTS}::test_what_is_due_runs_first_and_only_then_it_goes_on"),
            Witness(f"{OWN_TESTS}::test_so_does_what_is_due_when_it_is_reset"),
            Witness("tests/contract/test_schedule_progress.py::test_edited_while_due_each_slot_runs_first"),
        ),
    ),
    Mutant(
        name="due-slots-by-the-new-schedule",
        breaks="The slots that are due are counted by the new schedule, not by the one that was in force.",
        edits=(Edit(POSITION, "claim(policy.followed(status), status.next_slot", "claim(policy, status.next_slot"),),
        tests=(Witness(f"{OWN_TESTS}::test_what_is_due_runs_first_and_only_then_it_goes_on"),),
    ),
    Mutant(
        name="claim-keeps-the-former-schedule",
        breaks="The claim of the last due slot leaves the former schedule in force.",
        edits=(Edit(POSITION, "claimed is None or claimed.next_slot <= until", "claimed is None or until"),),
        tests=(Witness(f"{OWN_TESTS}::test_given_twice_while_it_is_due_the_last_one_goes_on"),),
    ),
    Mutant(
        name="claim-changes-over-due-slots",
        breaks="The claim of the first due slot changes the schedule, and drops the others.",
        edits=(Edit(POSITION, "claimed is None or claimed.next_slot <= until", "claimed is None"),),
        tests=(Witness(f"{OWN_TESTS}::test_what_is_due_runs_first_and_only_then_it_goes_on"),),
    ),
    Mutant(
        name="former-schedule-without-an-end",
        breaks="Slots of the former schedule that come due after the change are run as well.",
        edits=(Edit(POSITION, "ZERO, again, until)", "ZERO, again)"),),
        tests=(Witness(f"{OWN_TESTS}::test_only_what_was_due_by_then_comes_first"),),
    ),
    Mutant(
        name="new-schedule-from-the-claim-on",
        breaks="Slots of the new schedule that come due before those of the former one are done are dropped.",
        edits=(Edit(POSITION, "first_slot(schedule, until, early)", "first_slot(schedule, status.now, early)"),),
        tests=(Witness(f"{OWN_TESTS}::test_what_the_new_one_had_due_meanwhile_is_run_too"),),
    ),
    Mutant(
        name="stale-end-of-a-schedule",
        breaks="An end that is earlier than the due slot holds the job up for ever.",
        edits=(
            Edit(
                POSITION,
                "bool(status.next_slot and status.schedule_until and status.next_slot <= status.schedule_until)",
                "bool(status.schedule_until)",
            ),
        ),
        tests=(Witness(f"{OWN_TESTS}::test_a_mark_from_before_what_is_due_holds_up_nothing"),),
    ),
    Mutant(
        name="new-schedule-before-the-last-slot",
        breaks="A schedule is given right after cron has begun a slot early, and has that slot once more.",
        edits=(
            Edit(
                POSITION,
                "slot = max(slot, next_slot(schedule, status.last_slot))",
                "slot = max(slot, first_slot(schedule, now))",
            ),
        ),
        tests=(Witness(f"{OWN_TESTS}::test_a_slot_that_cron_has_begun_early_is_not_run_again"),),
    ),
    Mutant(
        name="own-schedule-ignored",
        breaks="All processes go by the schedule in the code, whatever an operator has given the job.",
        edits=(
            Edit(
                SLOTS,
                "return self._replace(schedule=parse(gate.own_schedule, gate.own_time_zone)) "
                "if gate.own_schedule else self",
                "return self",
            ),
        ),
        tests=(
            Witness(f"{OWN_TESTS}::test_no_process_puts_the_codes_back"),
            Witness(f"{OWN_TESTS}::test_it_is_due_by_the_new_one"),
        ),
    ),
    Mutant(
        name="worker-puts-the-codes-schedule-back",
        breaks="A worker that compares the schedules with the code puts the code's back.",
        edits=(Edit(DUE, "schedule = job.policy.at(status).schedule", "schedule = job.policy.schedule"),),
        tests=(Witness(f"{OWN_TESTS}::test_no_process_puts_the_codes_back"),),
    ),
    Mutant(
        name="cron-puts-the-codes-schedule-back",
        breaks="A caller that asks for a slot puts the code's schedule back.",
        edits=(Edit(ACQUIRE, "schedule = request.policy.at(own).schedule", "schedule = request.policy.schedule"),),
        tests=(Witness(f"{OWN_TESTS}::test_no_line_of_cron_puts_the_codes_back"),),
    ),
    Mutant(
        name="claim-puts-the-codes-schedule-back",
        breaks="The claim of a slot goes on with the code's schedule.",
        edits=(Edit(GRANT, "policy = request.policy and request.policy.at(own)", "policy = request.policy"),),
        tests=(Witness(f"{OWN_TESTS}::test_it_is_due_by_the_new_one"),),
    ),
    Mutant(
        name="slots-of-a-schedule-that-is-not-understood",
        breaks="A worker asks for slots of a job whose schedule it cannot parse.",
        edits=(Edit(DUE, " | registry.left_out.keys()", ""),),
        tests=(Witness(f"{OWN_TESTS}::test_a_server_that_cannot_parse_it_leaves_the_job_out"),),
    ),
    Mutant(
        name="adoption-without-the-gate",
        breaks="A row with our token is adopted although the gate was passed since.",
        edits=(Edit(ACQUIRE, "        if snapshot.gate.token != grant.token:\n            return RACED\n", ""),),
        tests=(Witness("tests/locking/test_acquire.py::test_a_grant_whose_gate_was_passed_since_is_not_adopted"),),
    ),
    Mutant(
        name="adoption-without-a-heartbeat",
        breaks="A row with our token is adopted although a renewal finds that it is gone.",
        edits=(Edit(ACQUIRE, "        if not is_kept:\n            return RACED\n", ""),),
        tests=(Witness("tests/locking/test_acquire.py::test_nor_one_whose_row_is_gone_when_it_is_renewed"),),
    ),
    Mutant(
        name="adopted-lease-counts-from-its-answer",
        breaks="An adopted lease counts from when the renewal was answered, not from before it was sent.",
        edits=(
            Edit(
                ACQUIRE,
                "        if not is_kept:\n            return RACED\n",
                "        asked_at = local_now()\n        if not is_kept:\n            return RACED\n",
            ),
        ),
        tests=(Witness("tests/locking/test_acquire.py::test_an_adopted_lease_counts_from_before_it_was_renewed"),),
    ),
    Mutant(
        name="grant-counts-from-its-answer",
        breaks="A lease counts from when it was granted, not from before it was asked for.",
        edits=(Edit(LEASE, "State(grant.asked_at)", "State(local_now())"),),
        tests=(Witness("tests/locking/test_lease.py::test_a_lease_counts_from_before_it_was_asked_for"),),
    ),
    Mutant(
        name="heartbeat-counts-from-its-answer",
        breaks="A holder counts from when a heartbeat was answered, not from before it was sent.",
        edits=(
            Edit(
                LEASE,
                "        if is_kept:\n            self.proven(sent_at)",
                "        if is_kept:\n            self.proven(local_now())",
            ),
        ),
        tests=(Witness("tests/locking/test_lease.py::test_a_renewal_counts_from_before_it_was_sent"),),
    ),
    Mutant(
        name="late-heartbeat-sets-the-deadline-back",
        breaks="A heartbeat that is answered late replaces the proof of a later one.",
        edits=(
            Edit(
                LEASE, "self._state.proven_at = max(self._state.proven_at, sent_at)", "self._state.proven_at = sent_at"
            ),
        ),
        tests=(Witness("tests/locking/test_lease.py::test_heartbeats_may_be_answered_in_any_order", SERVERS),),
    ),
    Mutant(
        name="late-heartbeat-looks-older",
        breaks="A heartbeat that arrives late makes the row look older than its holder counts.",
        edits=(Edit(LOCKS, '{"sent_at": newest, **beat}', '{"sent_at": sent_at, **beat}'),),
        tests=(
            Witness(
                "tests/contract/test_takeover.py::test_a_heartbeat_that_arrives_late_makes_the_row_no_older_than_its_holder_trusts",
                SERVERS,
            ),
        ),
    ),
    Mutant(
        name="lease-on-a-clock-that-stops",
        breaks="A holder counts by a clock that stops while its machine is suspended.",
        edits=(Edit(CLOCK, '_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)', "_CLOCK = None"),),
        tests=(Witness("tests/process/test_clock.py::test_the_local_clock_goes_on_while_the_machine_is_suspended"),),
    ),
    Mutant(
        name="release-in-doubt-is-ours",
        breaks="After a COMMIT without an answer, a lock that is gone counts as one that we released.",
        edits=(
            Edit(
                RELEASE,
                "return is_released or (self.is_in_doubt and self._was_released())",
                "return is_released or self.is_in_doubt",
            ),
        ),
        tests=(Witness("tests/contract/test_record_pairs.py::test_a_lock_that_was_cleared_by_force_was_not_released"),),
    ),
    Mutant(
        name="release-in-doubt-is-a-loss",
        breaks="After a COMMIT without an answer, a lock that we released counts as lost.",
        edits=(
            Edit(RELEASE, "return is_released or (self.is_in_doubt and self._was_released())", "return is_released"),
        ),
        tests=(
            Witness(
                "tests/locking/test_release.py::test_a_commit_that_was_carried_out_without_an_answer_has_released_the_lock"
            ),
            Witness(
                "tests/processes/test_outages.py::test_a_release_whose_answer_is_cut_off_is_a_release_and_counts_once",
                SERVERS,
            ),
        ),
    ),
    Mutant(
        name="release-without-the-gate",
        breaks="A release does not demand that the gate still has its token.",
        edits=(
            Edit(
                GATES,
                "return self.passed(name, token).update(**changes)",
                "return self.filter(name=name).update(**changes)",
            ),
        ),
        tests=(Witness(f"{EACH_WRITE}[finish]"),),
    ),
    Mutant(
        name="exit-frees-the-successor",
        breaks="A process that exits releases the lock by its name, even if it is another's.",
        edits=(Edit(AT_EXIT, "if lock is None or lock.token != token:", "if lock is None:"),),
        tests=(Witness("tests/locking/test_at_exit.py::test_a_successor_is_left_alone"),),
    ),
    Mutant(
        name="exit-of-a-child-frees-the-parent",
        breaks="A forked child that exits releases the locks of its parent.",
        edits=(Edit(AT_EXIT, "os.register_at_fork(after_in_child=_granted.clear)", "pass"),),
        tests=(Witness("tests/contract/test_process.py::test_a_forked_child_that_ends_frees_nothing"),),
    ),
    Mutant(
        name="exit-frees-what-a-thread-uses",
        breaks="A process that exits releases locks under which another thread may still be running.",
        edits=(
            Edit(
                AT_EXIT,
                "if granted.thread is threading.current_thread() or not granted.thread.is_alive():",
                "if granted:",
            ),
        ),
        tests=(Witness("tests/locking/test_at_exit.py::test_what_another_thread_may_go_on_with_is_left_to_expire"),),
    ),
    Mutant(
        name="one-off-claimed-before-the-commit",
        breaks="A one-off is claimed although a transaction that has asked for it once more is open.",
        edits=(Edit(ONE_OFFS, "if seen.unique_key and found.unlocked().first() is None:", "if False:"),),
        tests=(
            Witness(
                "tests/contract/test_unique.py::test_what_a_transaction_has_asked_for_is_not_begun_before_its_commit",
                ("postgresql", "mysql"),
            ),
        ),
    ),
    Mutant(
        name="one-off-unique-although-begun",
        breaks="A unique one-off that has begun, or was put back, still keeps a second one out of the queue.",
        edits=(
            Edit(
                "django_singlejob/migrations/0001_initial.py",
                """                                models.Q(("unique_key", ""), _negated=True),
                                status="waiting",
                                version=0,
""",
                """                                models.Q(("unique_key", ""), _negated=True),
""",
            ),
        ),
        tests=(Witness("tests/contract/test_unique.py::test_one_that_has_begun_does_not_count"),),
    ),
    Mutant(
        name="one-off-claimed-as-it-was",
        breaks="A one-off is claimed although its row has changed since it was seen.",
        edits=(
            Edit(
                ONE_OFFS,
                "self.filter(pk=seen.pk, version=seen.version).still_waiting()",
                "self.filter(pk=seen.pk)",
            ),
        ),
        tests=(
            Witness("tests/contract/test_one_offs.py::test_two_who_saw_the_same_one_run_it_once"),
            Witness(
                "tests/contract/test_one_offs.py::test_nor_one_that_waits_again_since_for_what_was_seen_of_it_is_the_past"
            ),
        ),
    ),
    Mutant(
        name="one-off-ended-by-a-zombie",
        breaks="A one-off is ended by a holder that lost its lock meanwhile.",
        edits=(
            Edit(
                ONE_OFFS,
                "return self.in_progress().filter(token=token).update(**self",
                "return self.in_progress().update(**self",
            ),
        ),
        tests=(Witness("tests/contract/test_one_offs.py::test_what_becomes_of_one_is_nothing_to_the_others"),),
    ),
    Mutant(
        name="batch-without-its-gate",
        breaks="A worker records and claims although the gate of its lock was passed.",
        edits=(
            Edit(
                BATCHES,
                "            if not gates().hold(lease.name, lease.token):\n                lease.distrust()",
                "            if False:\n                lease.distrust()",
            ),
        ),
        tests=(
            Witness(
                "tests/tasks/test_batches.py::test_without_its_lock_a_worker_neither_records_nor_claims", WITH_TASKS
            ),
        ),
    ),
    Mutant(
        name="batch-by-the-key-alone",
        breaks="A worker records the end of a task without comparing token and version.",
        edits=(
            Edit(
                BATCHES,
                "pk__in=[row.pk for row in claimed], token=token, version=claimed[0].version)",
                "pk__in=[row.pk for row in claimed])",
            ),
        ),
        tests=(
            Witness(
                "tests/tasks/test_batches.py::test_it_does_not_end_what_another_worker_has_begun_since", WITH_TASKS
            ),
            Witness("tests/tasks/test_batches.py::test_nor_what_it_has_itself_begun_again", WITH_TASKS),
            Witness("tests/tasks/test_batches.py::test_nor_what_now_has_another_token", WITH_TASKS),
        ),
    ),
    Mutant(
        name="batch-forgets-its-doubt",
        breaks="A claim whose COMMIT was not answered is never put back.",
        edits=(Edit(BATCHES, "            if is_uncertain:\n", "            if False:\n"),),
        tests=(Witness("tests/tasks/test_batches.py::test_a_claim_whose_answer_was_lost_is_not_lost", WITH_TASKS),),
    ),
    Mutant(
        name="takeover-waits-at-the-gate",
        breaks="A takeover waits for a fenced transaction instead of looking again.",
        edits=(
            Edit(
                CLEAR,
                "    if not gates().is_at_hand(dead.name):\n        return None",
                "    if False:\n        return None",
            ),
        ),
        tests=(
            Witness(
                "tests/contract/test_fence.py::test_who_would_take_over_does_not_wait_for_the_end_of_a_fenced_transaction",
                ("mysql",),
            ),
        ),
    ),
    Mutant(
        name="watch-ignores-heartbeats",
        breaks="A watch goes on although a heartbeat has come.",
        edits=(
            Edit(
                LIVENESS,
                "local_now(), (lock.token, lock.heartbeats, lock.timeline)",
                "local_now(), (lock.token, lock.timeline)",
            ),
        ),
        tests=(
            Witness("tests/locking/test_liveness.py::test_a_heartbeat_a_new_holder_and_a_failover_restart_it", ONCE),
            Witness("tests/contract/test_takeover.py::test_each_heartbeat_begins_the_watch_anew"),
        ),
    ),
    Mutant(
        name="gap-from-note-to-note",
        breaks="A gap between two looks counts from the end of the first, although the row may have been read earlier.",
        edits=(Edit(LIVENESS, "self._asked_at), asked_at\n", "self._asked_at), now\n"),),
        tests=(
            Witness("tests/locking/test_liveness.py::test_a_gap_counts_from_when_a_look_began", ONCE),
            Witness("tests/locking/test_liveness.py::test_however_long_looks_take_a_watch_has_no_gap", ONCE),
        ),
    ),
    Mutant(
        name="watched-while-it-looked",
        breaks="The time that the first and the last look took counts as watched.",
        edits=(Edit(LIVENESS, "timedelta(seconds=asked_at - noted_at)", "timedelta(seconds=local_now() - noted_at)"),),
        tests=(Witness("tests/locking/test_liveness.py::test_only_the_time_between_two_looks_counts", ONCE),),
    ),
    Mutant(
        name="asked-after-the-answer",
        breaks="A look counts from when the row was read, not from when it was asked for.",
        edits=(
            Edit(ACQUIRE, "self._watch.look(lock, asked_at)", "self._watch.look(lock, local_now())"),
            Edit(CLEAR, "].look(lock, asked_at)", "].look(lock, local_now())"),
        ),
        tests=(Witness("tests/contract/test_takeover.py::test_a_look_counts_from_before_the_row_is_asked_for"),),
    ),
    Mutant(
        name="deadline-without-its-margin",
        breaks="Rule (c) asks for a lease, without the two intervals that clocks may differ.",
        edits=(Edit(LIVENESS, "return lock.lease + margin(lock)", "return lock.lease"),),
        tests=(
            Witness("tests/locking/test_liveness.py::test_clocks_that_are_as_right_as_clocks_are_rob_nobody", ONCE),
        ),
    ),
    Mutant(
        name="no-margin-without-heartbeats",
        breaks="A holder that sends no heartbeats is left no time after its lease, so clocks that are right rob it.",
        edits=(Edit(LIVENESS, "if interval else min(_CLOSE, lease / 3)", "if interval else ZERO"),),
        tests=(
            Witness("tests/locking/test_liveness.py::test_clocks_that_are_as_right_as_clocks_are_rob_nobody", ONCE),
            Witness("tests/locking/test_liveness.py::test_for_a_moment_after_its_lease_it_is_left_alone", ONCE),
        ),
        simulation="Found in one of 2,000 schedules of all scenarios.",
    ),
    Mutant(
        name="inside-the-callers-transaction",
        breaks="A lock is granted inside a transaction that the caller may roll back.",
        edits=(
            Edit(
                ACQUIRE,
                "        transactions.refuse_open_transaction(self._alias, is_of_job=bool(self.request.job_name))\n"
                "        try:",
                "        try:",
            ),
        ),
        tests=(Witness("tests/contract/test_callers_transactions.py::test_not_inside_a_transaction"),),
    ),
    Mutant(
        name="history-decides",
        breaks="A grant fails if its row in the history cannot be written.",
        edits=(
            Edit(
                RECORDING,
                "            raise HistoryFailed(_problem(error)) from error\n\n\ndef writer(",
                "            raise\n\n\ndef writer(",
            ),
        ),
        tests=(Witness("tests/contract/test_claims.py::test_but_not_with_its_row_in_the_history"),),
    ),
    Mutant(
        name="run-ended-twice",
        breaks="A holder that lost its lock ends a run that is recorded as abandoned.",
        edits=(Edit(RUNS, "return self.running().filter(token=token)", "return self.filter(token=token)"),),
        tests=(
            Witness(f"{EACH_WRITE}[close the run]"),
            Witness("tests/contract/test_loss.py::test_a_job_that_was_robbed_raises_and_its_run_stays_abandoned"),
        ),
    ),
    Mutant(
        name="commit-that-may-be-lost",
        breaks="On PostgreSQL, a grant is committed as the role's settings say, perhaps asynchronously.",
        edits=(Edit(DATABASE, 'settings = {"synchronous_commit": "on"}', "settings: dict[str, str] = {}"),),
        tests=(
            Witness("tests/contract/test_durable.py::test_a_heartbeat_is_durable", ("postgresql",)),
            Witness("tests/contract/test_durable.py::test_all_that_decides_is_durable", ("postgresql",)),
        ),
    ),
    Mutant(
        name="hidden-for-good",
        breaks="A name that is hidden stays hidden when its gate is passed.",
        edits=(Edit(GATES, "token=token, hidden=False) == 1", "token=token) == 1"),),
        tests=(Witness("tests/contract/test_hidden.py::test_so_it_does_under_a_lock_that_is_shared"),),
    ),
    Mutant(
        name="sighting-believes-one-clock",
        breaks="Two looks in the admin count the time that either clock says has passed, not both.",
        edits=(Edit(CLEARING, "return min(lock.now - self.database_at,", "return max(lock.now - self.database_at,"),),
        tests=(
            Witness(
                "tests/admin/test_admin_locks.py::test_one_clock_that_was_set_ahead_ends_no_watch",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="check-tells-no-loss",
        breaks="A body is not told by check() that its lease is lost.",
        edits=(
            Edit(
                LEASE,
                "        if self.lost:\n            return LeaseLost(self.why_lost())\n        if self.stopped_by",
                "        if self.stopped_by",
            ),
        ),
        tests=(
            Witness(
                "tests/contract/test_in_process.py::test_a_job_that_lost_its_lock_is_told_before_its_lease_ends", ONCE
            ),
        ),
        may_hang=True,
        simulation=Simulation("deaths", "servers", 40),
    ),
    Mutant(
        name="stop-by-name",
        breaks="A user who stops a run marks whatever row has the lock's name.",
        edits=(
            Edit(
                LOCKS,
                'self.filter(name=name, token=token, stopped_by="").update(stopped_by=by)',
                'self.filter(name=name, stopped_by="").update(stopped_by=by)',
            ),
        ),
        tests=(Witness("tests/contract/test_stop.py::test_no_other_holder_is_hit"),),
    ),
    Mutant(
        name="mark-is-inherited",
        breaks="A takeover leaves the mark of the holder before it in the row.",
        edits=(Edit(GRANT, '            "stopped_by": "",\n', ""),),
        tests=(Witness("tests/contract/test_stop.py::test_the_next_holder_takes_no_mark_over"),),
    ),
    Mutant(
        name="mark-is-a-loss",
        breaks="A heartbeat that finds a mark takes the lease for lost.",
        edits=(Edit(LEASE, "is_kept = self._renew_marked(news, mark)", "pass"),),
        tests=(Witness("tests/contract/test_stop.py::test_the_next_heartbeat_finds_the_mark_and_the_lease_goes_on"),),
    ),
    Mutant(
        name="stopped-but-not-killed",
        breaks="A body that is to be stopped, and goes on, is not killed.",
        edits=(
            Edit(
                WATCH,
                "            self._end(STOPPED)\n            self.kill_by(now + self.grace)\n",
                "            self._end(STOPPED)\n",
            ),
        ),
        tests=(
            Witness("tests/processes/test_supervisor.py::test_a_user_stops_the_body[swallows every exception]", ONCE),
        ),
        may_hang=True,
    ),
    Mutant(
        name="news-cost-the-lease",
        breaks="After a heartbeat whose news the database refused, the next one has the same news.",
        edits=(Edit(LEASE, "self._state.is_reserved = news is not None", "pass"),),
        tests=(
            Witness("tests/contract/test_stop.py::test_news_that_the_database_refuses_go_untold_and_the_lease_goes_on"),
        ),
    ),
    Mutant(
        name="heartbeats-are-never-sent",
        breaks="Whoever keeps a lease never renews it.",
        edits=(Edit(HEARTBEAT, "        beat.skip()\n    for some", "        beat.skip()\n    return\n    for some"),),
        tests=(Witness("tests/locking/test_heartbeat_thread.py::test_the_next_lease_has_a_thread_again", ONCE),),
        may_hang=True,
        simulation=Simulation("two_locks", "servers", 40),
    ),
    Mutant(
        name="heartbeat-thread-is-not-woken",
        breaks="The thread of the heartbeats does not hear of a new lease while it waits for those that it has.",
        edits=(Edit(HEARTBEAT, "        self._calls.put(None)\n", ""),),
        tests=(Witness("tests/locking/test_heartbeat_thread.py::test_a_lease_that_is_shorter_is_renewed_too", ONCE),),
        may_hang=True,
    ),
    Mutant(
        name="heartbeat-thread-of-the-parent",
        breaks="A forked child takes its parent's thread of heartbeats for its own, although it has none.",
        edits=(Edit(HEARTBEAT, "if _own_thread.pid != os.getpid():", "if False:"),),
        tests=(
            Witness(
                "tests/locking/test_heartbeat_thread.py::test_a_forked_child_has_a_thread_of_its_own[ctypes.PyDLL(None).fork()]",
                ONCE,
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="watch-without-a-deadline",
        breaks="A supervisor does not end a body whose lease is lost.",
        edits=(Edit(WATCH, "is_lost = self.lease.lost and not self.lease.is_over", "is_lost = False"),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::"
                "test_a_body_that_is_stopped_beside_its_guard_ends_when_its_lock_is_lost",
                ONCE,
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="watch-without-its-last-word",
        breaks="A supervisor does not kill a body that goes on after the signal that ends it.",
        edits=(Edit(WATCH, "            self._kill_for_loss_at = now + self.grace\n", ""),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::"
                "test_a_body_that_is_stopped_beside_its_guard_ends_when_its_lock_is_lost",
                ONCE,
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="child-trusts-its-supervisor",
        breaks="A body goes on past its deadline while its supervisor is stopped.",
        edits=(Edit(SERVING, "        if left > 0:\n", "        if True:\n"),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::test_beside_a_supervisor_that_is_stopped_the_body_ends_before_the_next_begins"
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="guard-trusts-a-stopped-supervisor",
        breaks="A guard kills no run whose lease is over.",
        edits=(Edit(GUARD, "            self.kill()\n        return moment", "        return moment"),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::"
                "test_beside_a_supervisor_that_is_stopped_the_body_ends_before_the_next_begins[holds the GIL in C]"
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="guard-that-only-leaves",
        breaks="A guard whose supervisor is gone kills no run.",
        edits=(Edit(GUARD, "        for run in self._runs.values():\n            run.kill()\n", ""),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::test_the_body_dies_with_its_supervisor[holds the GIL in C]", ONCE
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="next-guard-knows-no-run",
        breaks="The guard that replaces another one is not told of the runs that are under way.",
        edits=(Edit(GUARDED, "_Guard(self._runs.values())", "_Guard([])"),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::"
                "test_a_guard_that_is_killed_is_replaced_and_the_next_one_knows_the_runs[holds the GIL in C]",
                ONCE,
            ),
        ),
        may_hang=True,
    ),
    Mutant(
        name="executor-kept-whatever-is-left",
        breaks="The next run gets the process of one that has left something behind.",
        edits=(Edit(SERVING, "        return bool(left)\n", "        return False\n"),),
        tests=(Witness("tests/life/test_life.py::test_after_one_that_leaves_something_the_next_gets_a_new_process"),),
    ),
    Mutant(
        name="not-begun-uses-an-attempt",
        breaks="A run that has not begun uses an attempt at its slot.",
        edits=(Edit(GATES, "last_attempt=attempt - 1", "last_attempt=attempt"),),
        tests=(Witness("tests/processes/test_not_begun.py::test_a_slot_is_given_back_with_its_only_attempt"),),
    ),
    Mutant(
        name="supervisor-keeps-one-lease",
        breaks="A supervisor sends heartbeats only for the first of its children.",
        edits=(
            Edit(
                SUPERVISOR,
                "        self._heartbeats.add(lease)\n        return started\n\n    def output",
                "        if not self._heartbeats.are_needed:\n            self._heartbeats.add(lease)\n"
                "        return started\n\n    def output",
            ),
        ),
        tests=(Witness("tests/processes/test_worker.py::test_the_heartbeats_of_all_runs_are_sent"),),
        may_hang=True,
    ),
    Mutant(
        name="heartbeats-together-count-for-all",
        breaks="Heartbeats that are sent together count for all of the leases, whatever became of their rows.",
        edits=(Edit(LOCKS, "return set(names) if is_complete else set()", "return {each.token for each in held}"),),
        tests=(
            Witness("tests/locking/test_heartbeat.py::test_a_stolen_lease_is_lost_alone_and_reported_once", ONCE),
            Witness("tests/models/test_locks.py::test_heartbeats_together_change_no_row_of_another_holder"),
        ),
    ),
    Mutant(
        name="shared-in-two-steps",
        breaks="What supervisor and child share is zero for a moment whenever it is written.",
        edits=(Edit(SHARED, "memory.numbers[place] = value", 'struct.pack_into("d", memory.bytes, 8 * place, value)'),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::"
                "test_a_check_that_coincides_with_a_heartbeat_finds_the_lease_as_it_is",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="check-and-signal-both-raise",
        breaks="A body that has found out by check() is interrupted while it cleans up.",
        edits=(Edit(CHILD, "if known and self._lease.raised is known:", "if False:"),),
        tests=(
            Witness(
                "tests/processes/test_supervisor.py::test_a_body_that_has_found_out_by_itself_cleans_up_undisturbed",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="begin-once-begins-again",
        breaks="A one-off that may begin only once begins again after a deploy.",
        edits=(Edit(ENDINGS, "may_begin_again=most > 1", "may_begin_again=most > 0"),),
        tests=(
            Witness("tests/contract/test_one_offs.py::test_one_that_may_begin_once_only_fails_if_it_is_told_to_end"),
        ),
    ),
    Mutant(
        name="heartbeats-together-by-name",
        breaks="Heartbeats that are sent together renew whatever rows have the names.",
        edits=(Edit(LOCKS, "self._unmarked(names).update(", "self.filter(name__in=names.values()).update("),),
        tests=(Witness("tests/models/test_locks.py::test_heartbeats_together_change_no_row_of_another_holder"),),
    ),
    Mutant(
        name="heartbeats-together-wait-for-a-locked-row",
        breaks="A row that another transaction has locked holds up the heartbeats of all leases.",
        edits=(Edit(LOCKS, "select_for_update(skip_locked=True)", "select_for_update()"),),
        tests=(
            Witness(
                "tests/locking/test_heartbeats_together.py::test_a_row_that_is_locked_lets_no_other_lease_expire",
                ("postgresql",),
            ),
        ),
    ),
    Mutant(
        name="heartbeats-together-count-from-their-answer",
        breaks="Leases count from when their heartbeats were answered, not from before they were sent.",
        edits=(Edit(HEARTBEAT, "lease.proven(sent_at)", "lease.proven(local_now())"),),
        tests=(
            Witness(
                "tests/locking/test_heartbeats_together.py::test_leases_count_from_before_their_heartbeats_were_sent",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="interrupted-slot-forgotten",
        breaks="A slot whose run a signal has ended is not run again.",
        edits=(Edit(RELEASE, "if end.is_cut_off and (slot :=", "if False and (slot :="),),
        tests=(
            Witness("tests/contract/test_claims.py::test_the_slot_of_a_run_that_a_signal_ends_is_run_again"),
            Witness("tests/contract/test_claims.py::test_a_pass_runs_it_though_no_slot_is_due"),
        ),
    ),
    Mutant(
        name="lost-slot-unheard",
        breaks="The last run of a slot that is not run again counts as no failure if a signal has ended it.",
        edits=(
            Edit(
                ENDINGS,
                "_replace(is_cut_off=False, is_failure=not is_stopped)",
                "_replace(is_cut_off=False)",
            ),
        ),
        tests=(
            Witness("tests/contract/test_claims.py::test_a_slot_that_is_not_run_again_has_failed"),
            Witness("tests/contract/test_claims.py::test_or_is_retried_as_a_one_off"),
        ),
    ),
    Mutant(
        name="interruption-unheard",
        breaks="No interruption counts as a failure, however many there are in a row.",
        edits=(Edit(ENDINGS, "IF_SECOND if self.is_cut_off else int(self.is_failure)", "int(self.is_failure)"),),
        tests=(
            Witness("tests/contract/test_claims.py::test_the_second_interruption_in_a_row_is_a_failure"),
            Witness("tests/contract/test_claims.py::test_so_it_is_if_no_schedule_has_started_the_run"),
        ),
    ),
    Mutant(
        name="stopped-slot-again",
        breaks="The slot of a run that a user has stopped is run again.",
        edits=(
            Edit(ENDINGS, "end.is_cut_off and (is_stopped or ", "end.is_cut_off and ("),
            Edit(
                RELEASE,
                "(slot := self._grant.slot) and not locks().stopped_by(self._name, self._token)",
                "(slot := self._grant.slot)",
            ),
        ),
        tests=(Witness("tests/contract/test_claims.py::test_a_run_that_a_user_stops_gives_its_slot_up"),),
    ),
    Mutant(
        name="death-of-an-earlier-attempt",
        breaks="The death of a holder makes the job's last slot due again, whichever slot it was running.",
        edits=(Edit(GATES, "last_slot=slot, last_attempt=attempt, next_slot", "next_slot"),),
        tests=(
            Witness(
                "tests/contract/test_claims.py::test_the_death_of_a_run_under_a_former_lock_is_no_reason_to_run_a_later_slot_again"
            ),
        ),
    ),
    Mutant(
        name="interval-outside-the-write",
        breaks="The write that starts a job does not demand that it is not paused and that min_interval is over.",
        edits=(Edit(GATES, "return self.ready(min_interval).update(", "return self.update("),),
        tests=(
            Witness("tests/contract/test_gate.py::test_a_start_in_the_same_moment_counts"),
            Witness("tests/contract/test_gate.py::test_a_pause_in_the_same_moment_counts"),
        ),
    ),
    Mutant(
        name="clear-without-the-gate",
        breaks="A lock is cleared without taking the gate from its holder.",
        edits=(Edit(CLEAR, "lambda: gates().revoke(lock.name)", "lambda: True"),),
        tests=(Witness("tests/contract/test_fence.py::test_who_was_cleared_writes_nothing"),),
    ),
    Mutant(
        name="orphans-in-the-wrong-order",
        breaks="The locks are read before the attempts, so an attempt that begins meanwhile counts as an orphan.",
        edits=(
            Edit(
                RUNS,
                '        tokens = set(self.values_list("token", flat=True))\n',
                '        early = set(locks().values_list("token", flat=True))\n'
                '        tokens = set(self.values_list("token", flat=True))\n',
            ),
            Edit(RUNS, 'tokens - set(locks().values_list("token", flat=True))', "tokens - early"),
        ),
        tests=(Witness("tests/models/test_runs.py::test_a_run_that_begins_meanwhile_is_no_orphan"),),
    ),
    Mutant(
        name="single-without-a-fence",
        breaks="A single statement that has waited for the gate passes it, whoever has passed it meanwhile.",
        edits=(Edit(SINGLE, " AND seen.name IS NULL AND gate.fence = seen.fence", " AND seen.name IS NULL"),),
        tests=(Witness(f"{SINGLE_TESTS}::test_the_faster_caller_at_the_gate_wins", ("postgresql",)),),
    ),
    Mutant(
        name="single-blind-to-duplicates",
        breaks="A single statement grants a token that the history has already.",
        edits=(
            Edit(SINGLE, "FROM taken, passed RETURNING id", "FROM taken, passed ON CONFLICT DO NOTHING RETURNING id"),
        ),
        tests=(
            Witness(f"{SINGLE_TESTS}::test_a_row_that_is_there_already_undoes_everything", ("postgresql",)),
            Witness(f"{SINGLE_TESTS}::test_a_ghost_whose_token_has_a_grant_by_now_is_refused", ("postgresql",)),
        ),
    ),
    Mutant(
        name="single-release-by-name",
        breaks="A single statement releases the lock of whoever has it.",
        edits=(
            Edit(
                SINGLE,
                "WHERE name = %(name)s AND token = %(token)s::uuid RETURNING name",
                "WHERE name = %(name)s RETURNING name",
            ),
            Edit(
                SINGLE,
                "WHERE name = %(name)s AND token = %(token)s::uuid AND EXISTS",
                "WHERE name = %(name)s AND EXISTS",
            ),
        ),
        tests=(Witness(f"{SINGLE_TESTS}::test_nobody_releases_the_lock_of_another", ("postgresql",)),),
    ),
    Mutant(
        name="single-half-a-release",
        breaks="A single statement that finds no lease records the end of the run all the same.",
        edits=(Edit(SINGLE, "SELECT 1 / (freed.token IS NOT NULL)::integer FROM", "SELECT 1 FROM"),),
        tests=(Witness(f"{SINGLE_TESTS}::test_a_release_that_finds_no_lease_changes_nothing", ("postgresql",)),),
    ),
    Mutant(
        name="single-never-in-doubt",
        breaks="After a lost answer to a single statement, the caller does not know the lock that it was granted.",
        edits=(Edit(SINGLE, "if was_undone(error):\n            rule_out", "if error:\n            rule_out"),),
        tests=(Witness(f"{SINGLE_TESTS}::test_a_grant_whose_answer_is_lost_is_adopted", ("postgresql",)),),
    ),
    Mutant(
        name="single-not-durable",
        breaks="A single statement is acknowledged before it is on disk, if the role is set up like that.",
        edits=(
            Edit(
                DATABASE,
                "return _limits(connections[alias], lock_timeout=lock_timeout, statement_timeout=patience)",
                'limits = {"lock_timeout": lock_timeout, "statement_timeout": patience}\n'
                "    return connections[alias].execute_wrapper(_Behind(_limiting(limits)[1:]))",
            ),
        ),
        tests=(Witness(f"{SINGLE_TESTS}::test_each_write_has_the_limits_and_is_durable", ("postgresql",)),),
    ),
)

MUTANTS = (*OF_THE_PROTOCOL, *REVERTED_REPAIRS, *OTHERS, *OF_ONE_OFFS, *OF_EXECUTORS, *OF_ROOMS)
