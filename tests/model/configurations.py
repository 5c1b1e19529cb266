"""The forms in which the models are checked, and the mutants that must be caught."""

from __future__ import annotations

from dataclasses import replace

from tests.model.checker import Configuration

TIMED = "N=2 LEASE=3 COARSE"
ROWS = "N=2 UNTIMED ANY_DATABASE_CLOCK CLEARERS"
PROMPT = "N=2 PROMPT NO_FENCES"
ONE_TRUSTS = "at_most_one_trusts_itself"
FENCED = "nothing_fenced_commits_after_a_newer_grant"
BEATS = "no_holder_that_beats_is_robbed"
COMES_BACK = "no_holder_that_comes_back_is_robbed"

HOLD = (
    Configuration("rows and locks, any time", ROWS, is_short=True),
    Configuration("trust, any database clock, short lease", "N=2 LEASE=2 COARSE ANY_DATABASE_CLOCK"),
    Configuration("trust, any database clock", f"{TIMED} ANY_DATABASE_CLOCK", seconds=300),
    Configuration("trust, any database clock, a lost COMMIT", f"{TIMED} ANY_DATABASE_CLOCK LOSSES=1", is_sampled=True),
    Configuration("trust, wrong clocks of servers", f"{TIMED} WRONG_CLOCKS", is_short=True),
    Configuration("two outages, prompt processes", f"{PROMPT} LEASE=3 GAPS DEATHS=0 LOSSES=0 OUTAGES=2", is_short=True),
    Configuration("three processes, rows and locks", ROWS.replace("N=2", "N=3"), is_sampled=True),
    Configuration(
        "after a death somebody gets the lock",
        f"{PROMPT} LEASE=2 DEATHS=1 LOSSES=0 LIVE_SOMEBODY",
        is_live=True,
        is_short=True,
    ),
    Configuration(
        "a lone contender gets the lock",
        "N=1 PROMPT NO_FENCES LEASE=2 DEATHS=0 LOSSES=1 LIVE_SOMEBODY",
        is_live=True,
    ),
    Configuration("every acquire ends", f"{PROMPT} LEASE=2 DEATHS=1 LOSSES=0 LIVE_END", is_live=True),
)

#: It takes three faults at once: silence, a wrong database clock and a wrong clock of a server. The model knows it.
LIMIT = Configuration(
    "the limit: both pairs of clocks are wrong", f"{TIMED} ANY_DATABASE_CLOCK WRONG_CLOCKS", ONE_TRUSTS, is_short=True
)

MUTANTS = (
    Configuration("no gate", f"{ROWS} M_NO_GATE", FENCED),
    Configuration("the gate is not as it was seen", f"{ROWS} M_GATE_UNSEEN", "fences_grow"),
    Configuration("no fence in fenced blocks", f"{ROWS} M_NO_FENCE", FENCED),
    Configuration("takeover on expiry alone", f"{TIMED} ANY_DATABASE_CLOCK M_EXPIRY_ALONE", BEATS),
    Configuration("the row is not as it was seen", f"{TIMED} ANY_DATABASE_CLOCK M_ROW_UNSEEN", BEATS),
    Configuration("takeover without the clocks of the servers", f"{TIMED} ANY_DATABASE_CLOCK M_NO_CLOCKS", ONE_TRUSTS),
    Configuration("release by name", f"{TIMED} WRONG_CLOCKS M_RELEASE_BY_NAME", ONE_TRUSTS),
    Configuration("renew by name", f"{TIMED} WRONG_CLOCKS M_RENEW_BY_NAME", ONE_TRUSTS),
    Configuration("trust until told otherwise", f"{TIMED} WRONG_CLOCKS M_TRUST_UNTIL_TOLD", ONE_TRUSTS),
    Configuration("trust counted from the answer", f"{TIMED} WRONG_CLOCKS M_COUNTS_FROM_THE_ANSWER", ONE_TRUSTS),
    Configuration("a lost COMMIT taken for granted", f"{TIMED} WRONG_CLOCKS LOSSES=1 M_BLIND_COMMIT", ONE_TRUSTS),
    Configuration(
        "the watch goes on after a gap",
        f"{PROMPT} LEASE=3 GAPS DEATHS=0 LOSSES=0 OUTAGES=2 M_NO_RESTART",
        COMES_BACK,
    ),
)

RUNS = "runs.pml"
ALONE = "no_body_lives_beside_a_successor"
HALF = "what_is_half_written_is_not_read"

RUNS_HOLD = (
    Configuration("a run, with a main thread that may hang", "", file=RUNS),
    Configuration("a run, with a prompt main thread", "PROMPT", file=RUNS, is_short=True),
    Configuration("each run ends, with one fault", "PROMPT LEASE=1 FAULTS=1 LIVE", file=RUNS, is_live=True),
)

#: If supervisor and guard both fail between two heartbeats, nothing ends a body that holds the GIL.
RUNS_LIMIT = Configuration(
    "the limit: supervisor and guard fail", "PROMPT NO_EXCEPTION", ALONE, file=RUNS, is_short=True
)

RUN_MUTANTS = tuple(
    Configuration(name, f"PROMPT {word}", expected, file=RUNS)
    for name, word, expected in (
        ("the guard kills too late", "M_GUARD_LATE", ALONE),
        ("the guard ignores a stopped supervisor", "M_GUARD_IGNORES_STOPPED", ALONE),
        ("a killed guard is not replaced", "M_GUARD_NOT_REPLACED", ALONE),
        ("the guard is told after the order", "M_TOLD_LATE", ALONE),
        ("SIGKILL is left to the guard", "M_WATCH_LEAVES_IT_TO_THE_GUARD", ALONE),
        ("an executor without its own watch", "M_NO_OWN_WATCH", ALONE),
        ("a body begins too late", "M_BEGINS_BLINDLY", ALONE),
        ("released before the executor ends", "M_RELEASES_EARLY", ALONE),
        ("given back while it may begin", "M_NOT_BEGUN_EARLY", "what_began_is_not_said_not_to_have_begun"),
        ("begun once ordered", "M_BEGUN_WHEN_SENT", "what_is_said_to_have_begun_has_begun"),
        ("the byte of the end before its length", "M_BYTE_BEFORE_LENGTH", "what_was_said_is_read"),
        ("the length of the end first", "M_LENGTH_FIRST", HALF),
        ("the byte of the order before the order", "M_BYTE_FIRST", HALF),
    )
) + tuple(
    Configuration(name, f"PROMPT LEASE=1 FAULTS=1 LIVE {word}", "each_run_ends", file=RUNS, is_live=True)
    for name, word in (
        ("a start that hangs is not ended", "M_START_MAY_HANG"),
        ("only the byte is waited for", "M_WAITS_FOR_THE_BYTE"),
    )
)

#: Those that the tests check too: each takes a moment.
SHORT = (
    "no gate",
    "no fence in fenced blocks",
    "takeover on expiry alone",
    "release by name",
    "renew by name",
    "trust until",
    "a lost COMMIT taken",
    "the watch goes on",
    "the guard ignores",
    "a killed guard",
    "SIGKILL is left",
    "an executor without",
    "a body begins too late",
    "released before",
    "given back while",
    "begun once ordered",
    "the byte of",
    "the length of",
    "a start that hangs",
    "only the byte",
)

ALL = (
    *HOLD,
    LIMIT,
    *RUNS_HOLD,
    RUNS_LIMIT,
    *(
        replace(each, name=f"mutant: {each.name}", is_short=each.name.startswith(SHORT))
        for each in (*MUTANTS, *RUN_MUTANTS)
    ),
)
