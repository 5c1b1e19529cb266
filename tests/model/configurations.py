"""The forms in which the model is checked, and the mutants that must be caught."""

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
)

ALL = (
    *HOLD,
    LIMIT,
    *(replace(each, name=f"mutant: {each.name}", is_short=each.name.startswith(SHORT)) for each in MUTANTS),
)
