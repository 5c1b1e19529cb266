"""The mutants of the rooms around the kernel: notes, why, the ledger, schedules that operators give, mails, `on=`, and
servers that stop asking."""

from __future__ import annotations

from tests.mutants.copies import Edit
from tests.mutants.mutant import ONCE, Mutant, Witness

ACKNOWLEDGING = "django_singlejob/monitoring/acknowledging.py"
DUE = "django_singlejob/worker/due.py"
JOB_FACTS = "django_singlejob/monitoring/job_facts.py"
LEDGER = "django_singlejob/monitoring/ledger.py"
MAILS = "django_singlejob/integrations/mails.py"
MARKS = "django_singlejob/monitoring/marks.py"
NOTES = "django_singlejob/control/notes.py"
NOTE_ROWS = "django_singlejob/models/notes.py"
PAUSING = "django_singlejob/control/pausing.py"
REGISTRY = "django_singlejob/jobs/registry.py"
REQUEST = "django_singlejob/locking/request.py"
SCHEDULES = "django_singlejob/control/schedules.py"
WHY_NOW = "django_singlejob/monitoring/why_now.py"
WHY_THEN = "django_singlejob/monitoring/why_then.py"
WORKERS = "django_singlejob/monitoring/workers.py"

ACKNOWLEDGING_TESTS = "tests/monitoring/test_acknowledging.py"
LEDGER_TESTS = "tests/monitoring/test_ledger.py"
MAIL_TESTS = "tests/integrations/test_mails.py"
MARK_TESTS = "tests/monitoring/test_marks.py"
NOTE_TESTS = "tests/control/test_notes.py"
ON_TESTS = "tests/contract/test_on.py"
OWN_TESTS = "tests/contract/test_own_schedule.py"
WHY_TESTS = "tests/monitoring/test_why.py"
WORKER_TESTS = "tests/monitoring/test_workers.py"

OF_NOTES = (
    Mutant(
        name="note-of-no-change",
        breaks="A pause is noted although the job was paused like that before.",
        edits=(
            Edit(
                PAUSING,
                "return gates().pause(name, with_all=with_all, **why) and noted(NoteKind.PAUSED, name, **why)",
                "return noted(NoteKind.PAUSED, name, **why) and gates().pause(name, with_all=with_all, **why)",
            ),
        ),
        tests=(Witness(f"{NOTE_TESTS}::test_a_pause_is_noted_with_who_made_it_and_why"),),
    ),
    Mutant(
        name="note-without-a-name",
        breaks="It is not noted by whom a job was resumed.",
        edits=(Edit(PAUSING, "noted(NoteKind.RESUMED, name, by=by)", "noted(NoteKind.RESUMED, name)"),),
        tests=(Witness(f"{NOTE_TESTS}::test_a_pause_is_noted_with_who_made_it_and_why"),),
    ),
    Mutant(
        name="note-of-a-late-slot",
        breaks="A slot that is run late is noted as given up.",
        edits=(Edit(NOTES, "    if reason != MisfireOutcome.LATE:\n        noted", "    if reason:\n        noted"),),
        tests=(Witness(f"{NOTE_TESTS}::test_slots_that_were_given_up_are_noted_and_one_that_is_run_late_has_a_run"),),
    ),
    Mutant(
        name="note-of-a-takeover",
        breaks="A lock that another run has taken over is noted as cleared.",
        edits=(Edit(NOTES, "    if lease is None:\n", "    if lock:\n"),),
        tests=(Witness(f"{NOTE_TESTS}::test_a_lock_that_is_cleared_is_noted_and_one_that_is_taken_over_has_a_run"),),
    ),
    Mutant(
        name="note-that-undoes-its-cause",
        breaks="A note that the database refuses undoes what it is about.",
        edits=(Edit(NOTES, "limited(alias, PATIENCE), transaction.atomic(using=alias):", "limited(alias, PATIENCE):"),),
        tests=(Witness(f"{NOTE_TESTS}::test_a_note_that_is_refused_prevents_nothing", ("postgresql",)),),
    ),
    Mutant(
        name="note-in-an-undone-transaction",
        breaks="A pause is reported although all of its transaction is undone.",
        edits=(Edit(NOTES, "if connection.in_atomic_block and connection.needs_rollback:", "if False:"),),
        tests=(Witness(f"{NOTE_TESTS}::test_what_undoes_the_whole_transaction_is_told"),),
    ),
    Mutant(
        name="note-as-it-was-typed",
        breaks="A reason is noted with characters that a database refuses.",
        edits=(Edit(NOTES, "printable(facts[name], length)", "facts[name][:length]"),),
        tests=(Witness(f"{NOTE_TESTS}::test_hostile_texts_are_escaped"),),
    ),
    Mutant(
        name="edits-pruned",
        breaks="After a month, nobody knows who has given a job its schedule.",
        edits=(Edit(NOTE_ROWS, ".exclude(kind=NoteKind.SCHEDULE_EDITED)", ""),),
        tests=(Witness(f"{OWN_TESTS}::test_who_gave_it_is_not_forgotten"),),
    ),
)

OF_SCHEDULES = (
    Mutant(
        name="edit-of-what-is-not-editable",
        breaks="An operator changes a schedule of which the code says that it is not to be changed.",
        edits=(Edit(SCHEDULES, "    if schedule and not job.editable:\n", "    if False:\n"),),
        tests=(Witness(f"{OWN_TESTS}::test_one_that_is_not_to_be_changed_can_be_reset_only"),),
    ),
    Mutant(
        name="no-reset-of-what-is-not-editable",
        breaks="A schedule that an operator has given stays for ever, once the code says that it is not to be changed.",
        edits=(Edit(SCHEDULES, "    if schedule and not job.editable:\n", "    if not job.editable:\n"),),
        tests=(Witness(f"{OWN_TESTS}::test_one_that_is_not_to_be_changed_can_be_reset_only"),),
    ),
    Mutant(
        name="second-edit-waits-anew",
        breaks="A second change while slots are due lets those of the former schedule come due until then.",
        edits=(Edit(SCHEDULES, "end = seen.schedule_until if is_waiting(seen) else seen.now", "end = seen.now"),),
        tests=(Witness(f"{OWN_TESTS}::test_a_second_change_while_it_waits_keeps_the_first_end"),),
    ),
    Mutant(
        name="edit-leaves-the-end",
        breaks="The former schedule, given again, ends where it would have ended.",
        edits=(Edit(SCHEDULES, '= {"schedule_until": None} if seen.schedule_until else {}', "= {}"),),
        tests=(Witness(f"{OWN_TESTS}::test_the_mark_is_gone_once_the_former_one_holds_again"),),
    ),
)

OF_WHY = (
    Mutant(
        name="why-a-pause-that-was-over",
        breaks="A pause that ended long before the slot was given up is named as the reason.",
        edits=(
            Edit(
                WHY_THEN,
                "if begin <= slot < (end or moved_at) and (last or moved_at) > moved_at - RUN_WITHIN:",
                "if begin <= slot < (end or moved_at):",
            ),
        ),
        tests=(Witness(f"{WHY_TESTS}::test_a_pause_that_ended_long_before_the_next_run_is_no_cause", ONCE),),
    ),
    Mutant(
        name="why-a-lock-that-was-free",
        breaks="A run that ended long before the slot was given up is named as the reason.",
        edits=(Edit(WHY_THEN, "max(slot, moved_at - RUN_WITHIN)", "slot"),),
        tests=(Witness(f"{WHY_TESTS}::test_a_lock_that_was_free_soon_is_no_cause", ONCE),),
    ),
    Mutant(
        name="why-a-holder-that-was-dead",
        breaks="A run whose holder has died counts as holding the lock until now.",
        edits=(Edit(WHY_THEN, "if not (is_dead or is_later) and", "if not is_later and"),),
        tests=(Witness(f"{WHY_TESTS}::test_nobody_knows_until_when_a_dead_holder_lived", ONCE),),
    ),
    Mutant(
        name="why-nobody-though-somebody-asked",
        breaks="If one server did not ask, the answer is that none did.",
        edits=(
            Edit(
                WHY_THEN,
                "if not gaps or _asking_at(known, slot) or known.has_lines:",
                "if not gaps or known.has_lines:",
            ),
        ),
        tests=(Witness(f"{WHY_TESTS}::test_no_server_asked", ONCE),),
    ),
    Mutant(
        name="why-nobody-though-lines-ask",
        breaks="If no worker asked, the answer is that nobody did, although lines of cron leave no mark.",
        edits=(
            Edit(
                WHY_THEN,
                "if not gaps or _asking_at(known, slot) or known.has_lines:",
                "if not gaps or _asking_at(known, slot):",
            ),
        ),
        tests=(Witness(f"{WHY_TESTS}::test_where_lines_ask_too_it_is_not_known_whether_any_server_asked", ONCE),),
    ),
    Mutant(
        name="why-together-with-a-run-by-hand",
        breaks="A slot that somebody ran by hand counts as run in place of earlier ones.",
        edits=(Edit(JOB_FACTS, 'return found or later.exclude(trigger="manual")', "return found or later"),),
        tests=(Witness(f"{WHY_TESTS}::test_a_later_slot_that_was_run_by_hand_has_taken_none_with_it", ONCE),),
    ),
    Mutant(
        name="why-busy-though-one-is-free",
        breaks="If one worker runs something, the answer is that each does.",
        edits=(
            Edit(
                WHY_NOW,
                "if not alive or {lock.holder for lock in held} != alive:",
                "if not alive or not held:",
            ),
        ),
        tests=(Witness(f"{WHY_TESTS}::test_while_a_worker_is_free_the_others_are_no_cause", ONCE),),
    ),
)

OF_THE_LEDGER = (
    Mutant(
        name="ledger-together-however-late",
        breaks="A slot counts as run with the next one, however much later that was.",
        edits=(
            Edit(
                LEDGER,
                "next_run is not None and moved_at <= slot + self.facts.grace + MINUTE",
                "next_run is not None",
            ),
        ),
        tests=(Witness(f"{LEDGER_TESTS}::test_a_slot_without_a_run_was_missed", ONCE),),
    ),
    Mutant(
        name="ledger-together-though-each-is-run",
        breaks="A slot of a job that runs each of them counts as run with the next one.",
        edits=(Edit(LEDGER, "if is_in_time and not is_each_run else", "if is_in_time else"),),
        tests=(
            Witness(
                f"{LEDGER_TESTS}::test_slots_in_whose_place_a_later_one_ran_in_time_are_an_outcome_of_their_own", ONCE
            ),
        ),
    ),
    Mutant(
        name="ledger-by-the-first-attempt",
        breaks="A slot that was taken over and run counts as cut off.",
        edits=(
            Edit(
                LEDGER,
                "        last = attempts[-1]\n        if _is_doubled",
                "        last = attempts[0]\n        if _is_doubled",
            ),
        ),
        tests=(Witness(f"{LEDGER_TESTS}::test_the_attempts_at_a_slot_are_one_run", ONCE),),
    ),
    Mutant(
        name="ledger-from-the-first-schedule-alone",
        breaks="Slots before the first one of a schedule that was soon replaced are not in the ledger.",
        edits=(Edit(LEDGER, "for change in noted[1:]", "for change in noted[:0]"),),
        tests=(
            Witness(
                f"{LEDGER_TESTS}::"
                "test_a_schedule_that_replaces_another_before_its_first_slot_is_known_from_its_own_first_slot",
                ONCE,
            ),
        ),
    ),
    Mutant(
        name="ledger-twice-by-hand",
        breaks="A slot that failed, and was run again by hand, counts as run twice.",
        edits=(Edit(LEDGER, 'if run.slot and run.trigger != "manual"]', "if run.slot]"),),
        tests=(Witness(f"{LEDGER_TESTS}::test_the_attempts_at_a_slot_are_one_run", ONCE),),
    ),
    Mutant(
        name="ledger-never-twice",
        breaks="A slot that was successful, and was run again, counts as run once.",
        edits=(
            Edit(
                LEDGER,
                ' or any(run.status == "successful" for run in attempts[:-1])',
                "",
            ),
        ),
        tests=(Witness(f"{LEDGER_TESTS}::test_the_attempts_at_a_slot_are_one_run", ONCE),),
    ),
    Mutant(
        name="ledger-late-for-ever",
        breaks="A slot that nobody runs is due for ever, and never missed.",
        edits=(Edit(LEDGER, "return is_next and slot > self.facts.now - OVERDUE", "return is_next"),),
        tests=(Witness(f"{LEDGER_TESTS}::test_a_slot_that_may_still_run_in_time_is_due", ONCE),),
    ),
    Mutant(
        name="ledger-without-retries",
        breaks="A slot whose retry was successful has failed.",
        edits=(Edit(LEDGER, "if slot := run.slot or run.retried_slot:", "if slot := run.slot:"),),
        tests=(Witness(f"{LEDGER_TESTS}::test_a_retry_that_was_successful_has_run_its_slot", ONCE),),
    ),
    Mutant(
        name="ledger-misses-what-was-pruned",
        breaks="A slot whose run may have been pruned counts as missed.",
        edits=(Edit(LEDGER, "        if slot < self._complete_since - MILLISECOND:\n", "        if False:\n"),),
        tests=(Witness(f"{LEDGER_TESTS}::test_a_slot_whose_run_may_have_been_pruned_has_no_record", ONCE),),
    ),
)

OF_ALERTS = (
    Mutant(
        name="mail-from-each-server",
        breaks="Each server that finds out mails it.",
        edits=(
            Edit(
                MAILS,
                "if rows.filter(is_due).update(sent_at=DBNow() - (DAY - AGAIN_AFTER)) == 1 and send(",
                "if rows.filter(is_due).exists() and send(",
            ),
        ),
        tests=(Witness(f"{MAIL_TESTS}::test_of_ten_servers_one_tells", ONCE),),
    ),
    Mutant(
        name="mail-each-time",
        breaks="What stays critical is mailed each time that somebody looks.",
        edits=(Edit(MAILS, "is_due = Q(sent_at__isnull=True) | Q(sent_at__lte=DBNow() - DAY)", "is_due = Q()"),),
        tests=(
            Witness(f"{MAIL_TESTS}::test_a_failure_is_sent_at_once_and_once", ONCE),
            Witness(f"{MAIL_TESTS}::test_slots_that_were_given_up_are_told_once_a_day", ONCE),
        ),
    ),
    Mutant(
        name="mail-lost-for-a-day",
        breaks="A mail that no mail server took is tried again only the next day.",
        edits=(Edit(MAILS, "update(sent_at=DBNow() - (DAY - AGAIN_AFTER))", "update(sent_at=DBNow())"),),
        tests=(Witness(f"{MAIL_TESTS}::test_a_mail_that_no_server_takes_is_a_line_and_is_sent_later", ONCE),),
        may_hang=True,
    ),
    Mutant(
        name="mail-of-what-is-acknowledged",
        breaks="What somebody has acknowledged is mailed.",
        edits=(Edit(MAILS, "return not found.acknowledged and (", "return ("),),
        tests=(Witness(f"{MAIL_TESTS}::test_what_is_acknowledged_is_not_told", ONCE),),
    ),
    Mutant(
        name="mail-of-an-unproven-recovery",
        breaks="A job that is paused, or overdue as well, counts as well again.",
        edits=(Edit(MAILS, "return is_gone or states in ([State.RUNNING], [State.IDLE])", "return True"),),
        tests=(Witness(f"{MAIL_TESTS}::test_what_proves_no_success_is_no_recovery", ONCE),),
    ),
    Mutant(
        name="paused-queue-is-well-again",
        breaks="A queue is mailed to be well again when the jobs of what is due in it are paused.",
        edits=(
            Edit(MAILS, "(scope.is_narrow or one_offs().in_queues([row.subject]).due().exists())", "scope.is_narrow"),
        ),
        tests=(Witness(f"{MAIL_TESTS}::test_a_queue_is_well_again_once_nothing_is_left_in_it", ONCE),),
    ),
    Mutant(
        name="lost-server-kept",
        breaks="The row of a mail about a server that is gone for good stays for ever.",
        edits=(Edit(MAILS, "if _is_forgotten(row, scope, verdict):", "if False:"),),
        tests=(Witness(f"{MAIL_TESTS}::test_a_server_that_is_gone_for_good_is_forgotten_here_too", ONCE),),
    ),
    Mutant(
        name="acknowledged-for-ever",
        breaks="What was acknowledged until an instant alarms nobody after that.",
        edits=(Edit(ACKNOWLEDGING, "acknowledged_until__gt=DBNow())", "acknowledged_until__isnull=False)"),),
        tests=(Witness(f"{ACKNOWLEDGING_TESTS}::test_it_ends_by_itself", ONCE),),
    ),
    Mutant(
        name="acknowledged-beyond-a-success",
        breaks="A failure that was acknowledged mutes the next one, although the job was successful in between.",
        edits=(
            Edit(ACKNOWLEDGING, "acknowledged_until__gt=DBNow()).exclude(since)", "acknowledged_until__gt=DBNow())"),
        ),
        tests=(Witness(f"{ACKNOWLEDGING_TESTS}::test_a_success_since_then_ends_it_and_an_earlier_one_does_not", ONCE),),
    ),
)

OF_SERVERS = (
    Mutant(
        name="on-asked-for-elsewhere",
        breaks="A worker asks for the slots and one-offs of jobs that are for other servers.",
        edits=(
            Edit(
                DUE,
                "return {job.name for job in registry.all_jobs() if not job.is_for(hostname)} | registry",
                "return {job.name for job in registry.all_jobs() if not hostname} | registry",
            ),
        ),
        tests=(Witness(f"{ON_TESTS}::test_no_one_off_is_run_elsewhere"),),
    ),
    Mutant(
        name="on-run-elsewhere",
        breaks="A line of cron runs a slot on a server that the job is not for.",
        edits=(Edit(REQUEST, "return Reason.NOT_HERE if self.is_elsewhere else None", "return None"),),
        tests=(Witness(f"{ON_TESTS}::test_no_slot_is_asked_for_elsewhere_and_none_is_lost"),),
    ),
    Mutant(
        name="on-by-the-whole-name",
        breaks="The first part of a host name does not count as a server's name.",
        edits=(Edit(REGISTRY, 'names = {hostname, hostname.partition(".")[0]}', "names = {hostname}"),),
        tests=(Witness(f"{ON_TESTS}::test_a_name_is_compared_with_the_host_name_and_with_its_first_part"),),
    ),
    Mutant(
        name="seen-each-time",
        breaks="Each pass writes its mark anew, however often cron begins one.",
        edits=(Edit(MARKS, "        if 0 not in found:\n", "        if True:\n"),),
        tests=(Witness(f"{MARK_TESTS}::test_a_pass_that_was_seen_a_moment_ago_asks_one_question", ONCE),),
    ),
    Mutant(
        name="seen-in-the-future",
        breaks="After the database's clock was set back, a server is not seen until then.",
        edits=(
            Edit(
                MARKS,
                "Q(seen_at__gt=DBNow() - within, seen_at__lte=DBNow() + within)",
                "Q(seen_at__gt=DBNow() - within)",
            ),
        ),
        tests=(Witness(f"{MARK_TESTS}::test_one_in_the_future_is_recorded_anew", ONCE),),
    ),
    Mutant(
        name="back-after-a-moment",
        breaks="A server that was away no longer than usual is noted as back.",
        edits=(Edit(MARKS, "if SILENT_AFTER < away < FORGOTTEN_AFTER", "if ZERO < away < FORGOTTEN_AFTER"),),
        tests=(Witness(f"{NOTE_TESTS}::test_a_server_that_is_back_is_noted"),),
    ),
    Mutant(
        name="silent-though-replaced",
        breaks="After a deploy, each container of the last release is missed.",
        edits=(
            Edit(
                WORKERS,
                "            if successor is None:\n                yield row\n            else:",
                "            yield row\n            if successor:",
            ),
        ),
        tests=(
            Witness(f"{WORKER_TESTS}::test_each_deploy_replaces_the_containers_of_the_last_one", ONCE),
            Witness(f"{WORKER_TESTS}::test_a_new_server_takes_the_place_of_one_of_the_same_queues", ONCE),
        ),
    ),
    Mutant(
        name="silent-though-replaced-by-one",
        breaks="One new server takes the place of all that have stopped asking.",
        edits=(Edit(WORKERS, "            else:\n                newest_first.remove(successor)\n", ""),),
        tests=(Witness(f"{WORKER_TESTS}::test_a_new_server_takes_the_place_of_one_of_the_same_queues", ONCE),),
    ),
    Mutant(
        name="silent-by-day",
        breaks="A server that asks once a night is missed in the morning.",
        edits=(
            Edit(WORKERS, "(FORGOTTEN_AFTER if gap > RARE else max(SILENT_AFTER, 2 * gap))", "max(SILENT_AFTER, gap)"),
        ),
        tests=(Witness(f"{WORKER_TESTS}::test_one_that_asks_from_monday_to_friday_is_not_missed_on_sunday", ONCE),),
    ),
)

OF_ROOMS = (*OF_NOTES, *OF_SCHEDULES, *OF_WHY, *OF_THE_LEDGER, *OF_ALERTS, *OF_SERVERS)
