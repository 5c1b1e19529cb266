/* The protocol of docs/explanation/protocol.md, as the code is now. See `configurations.py` for the forms in which it is
   checked, and `traces.py` for how it follows what the simulation of the real code did.

   Time goes in ticks of one heartbeat interval. Each age is counted from its own event and stops at the greatest value
   that a decision looks at, so the states are finite. A process may stop anywhere for any time, except where PROMPT
   says that time goes on only when all processes have done what they can.

   What is left out, and why that is sound, or where it is not:

   * A database clock that may be set at any time to any value (ANY_DATABASE_CLOCK) is a free choice of "suspected" at
     each look and at each takeover. This allows more than any real clock does.
   * Wrong clocks of the servers (WRONG_CLOCKS) let condition (c) of the watch hold at any time, with a right database
     clock. With right ones, a whole lease that was seen to pass implies (c), so it is not counted again.
   * Gaps restart the watch only with GAPS. Without them, takeovers come earlier, so safety is shown for more.
   * COARSE makes each transaction one step, at its COMMIT. Its row locks keep it apart from all others, and time may
     pass before it. A COMMIT whose answer is lost waits in `orphan`, and takes effect at any time while its conditions
     still hold. Without COMMIT answers to lose (LOSSES), a dead process's transaction is rolled back at once.
   * UNTIMED drops all clocks and keeps each statement and lock: fenced blocks must be safe whatever the clocks say.
   * Tokens of one process that it has given up are alike. Fences are compared with what a caller saw, not counted.
   * A heartbeat is one step. A process has one heartbeat under way at a time (two in traces).
   * Not modelled: PostgreSQL's timelines, lost commits of a failover, Galera, schedules and slots, the history, one-offs, the
     admin's sighting, clock drift, and, with SQLite, the deadline that is suspended in a fenced block: there a block is
     one step.
   * In a trace, time is rounded to an interval either way, a clear is judged only by the row's silence, and the clocks
     of servers may be wrong unless all run on one host.
*/
#ifndef N
#define N 2
#endif
#ifndef LEASE
#define LEASE 3
#endif
#ifndef BEATS
#define BEATS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define INTERVAL 1
#define WATCH (2 * INTERVAL)
#define WHOLE (LEASE + WATCH)
#define FAR (LEASE + 1)
#define NEVER 255
#define NOBODY 0

/* --- what happened, for people and for traces */

#define LOOKS_FREE 1
#define LOOKS_MINE 2
#define LOOKS_LIVE 3
#define LOOKS_SUSPECTED 4
#define GRANTED 5
#define TAKEN_OVER 6
#define RENEWED 7
#define FENCED_COMMIT 8
#define RELEASED 9
#define CLEARED 10
#define FORCED_CLEAR 11
#define LOST_COMMIT 12
#define STARTED 13
#define DIED 14

#ifdef TRACE
/* The events of a trace, which their order forces on the model. `trace.h` reads them. */
c_decl { \#include "trace.h" };
short at = 0;
short ticks = 0;
short next = 0;
#define MAY(what) c_expr { script[now.at].event == what && script[now.at].actor == PContender->i && now.ticks >= script[now.at].earliest }
#define MAY_BEAT(what) c_expr { script[now.at].event == what && script[now.at].actor == PHeartbeat->i && now.ticks >= script[now.at].earliest }
#define DID(event) c_code { now.at++; now.next = script[now.at].actor; if (now.at > furthest) furthest = now.at; }
#define INVISIBLE(event) false
#else
#define MAY(event) true
#define MAY_BEAT(event) true
#define DID(event) printf("process %d: event %d at phase %e\n", i + 1, event, a[i].phase)
#define INVISIBLE(event) true
#endif

/* --- the rows */

byte gate_token = NOBODY;
byte gate_lock = NOBODY;
byte row_token = NOBODY;
byte row_left = 0;
byte row_sent = 0;
byte row_lock = NOBODY;
byte new_left = 0;
byte new_sent = 0;
byte silence = 0;

/* --- the contenders */

mtype:phase = { IDLE, WAIT, LOOK, NOTE, GATE, ASK, PASS, TAKE, COMMIT, DONE, ADOPT, RENEW, CONFIRM, ADOPTED, HOLD, ENTER,
    INSIDE, LEAVE, DELETE, FINISH, REST, DEAD };
mtype:kind = { NOTHING, GRANT, TAKEOVER, CLEAR, FORCED, FENCED, RELEASE, ADOPTION };
mtype:beat = { NONE, SENT, KEPT, GONE };

typedef Beat {
    mtype:beat state;
    bit old;
    byte age;
}

typedef Actor {
    mtype:phase phase;
    mtype:kind kind;
    bit lost;
    bit doubt;
    bit moved;
    bit behind;
    bit same;
    bit equal;
    bit there;
    bit suspect;
    bit ripe;
    bit superseded;
    bit forced;
    mtype:kind orphan;
    bit orphan_old;
    bit orphan_sent;
    byte orphan_age;
    byte proven;
    byte watched;
    byte unchanged;
    byte looked;
    byte trouble;
    Beat beats[BEATS];
}

Actor a[N];

hidden byte k;
hidden byte b;

#define TOKEN(x) (x + 1)
#define OLD(x) (x + 1 + N)
#define MAIN(x) (x + 1)
#define ORPHAN(x) (x + 1 + N)
#define LOCK_BEAT 254

#ifdef ONE_WRITER
#define GATE_FREE(x) ((gate_lock == NOBODY || gate_lock == x) && (row_lock == NOBODY || row_lock == x))
#define ROW_FREE(x) GATE_FREE(x)
#else
#define GATE_FREE(x) (gate_lock == NOBODY || gate_lock == x)
#define ROW_FREE(x) (row_lock == NOBODY || row_lock == x)
#endif
#ifdef ANY_DATABASE_CLOCK
#define MAY_SEEM_DEAD true
#define MAY_SEEM_LIVE true
#else
#define MAY_SEEM_DEAD (row_left == 0 || row_left > LEASE)
#define MAY_SEEM_LIVE (row_left > 0 && row_left <= LEASE)
#endif

#define IS_GRANTED(x) (a[x].phase == DONE || a[x].phase == RENEW || a[x].phase == CONFIRM || a[x].phase == ADOPTED || \
    HOLDING(x))
#define HOLDING(x) (a[x].phase == HOLD || a[x].phase == ENTER || a[x].phase == INSIDE)
#ifdef M_TRUST_UNTIL_TOLD
#define IN_TIME(x) true
#elif defined(ONE_WRITER)
#define IN_TIME(x) (a[x].proven < LEASE || (a[x].phase == INSIDE && gate_lock == MAIN(x)))
#else
#define IN_TIME(x) (a[x].proven < LEASE)
#endif
#define TRUSTS(x) (HOLDING(x) && !a[x].lost && IN_TIME(x) && !a[x].forced)

#define HAS_LOCKS(x) (gate_lock == MAIN(x) || row_lock == MAIN(x))

/* --- the faults */

#ifdef OUTAGES
byte outages = OUTAGES;
bit is_down = 0;
#define UP (is_down == 0)
#else
#define UP true
#endif
#ifdef PROMPT
byte deaths = DEATHS;
#endif
#ifdef LOSSES
byte losses = LOSSES;
#define LOSABLE (a[i].orphan == NOTHING && losses > 0)
#define SPEND losses--
#else
#define LOSABLE (a[i].orphan == NOTHING)
#define SPEND skip
#endif
#ifdef NO_FENCES
#define FENCES false
#else
#define FENCES true
#endif

/* --- traces name the owner of the row that a look saw, and the kind of a transaction */

#define MAY_DO(work) ((work == GRANT && MAY(GRANTED)) || (work == TAKEOVER && MAY(TAKEN_OVER)) || (work == RELEASE && MAY(RELEASED)))
#ifdef TRACE
#define SEES_OWNER c_expr { now.row_token == script[now.at].owner + 1 || now.row_token == script[now.at].owner + 1 + N }
#else
#define SEES_OWNER true
#endif

/* --- the properties */

bool at_most_one_trusts_itself = true;
bool nothing_fenced_commits_after_a_newer_grant = true;
bool no_holder_that_beats_is_robbed = true;
bool fences_grow = true;
bool no_holder_that_comes_back_is_robbed = true;
byte trusting;

inline check_trust() {
#if !defined(UNTIMED) && !defined(TRACE)
    trusting = 0;
    for (k : 0 .. N - 1) { if :: TRUSTS(k) -> trusting++ :: else fi }
    at_most_one_trusts_itself = trusting < 2;
    trusting = 0; k = 0;
    assert(at_most_one_trusts_itself);
#endif
    skip
}

#define forget_watch(x) a[x].watched = NEVER; a[x].unchanged = 0; a[x].looked = 0; a[x].same = 0

#define drop_orphan(x) a[x].orphan = NOTHING; a[x].orphan_sent = 0; a[x].orphan_old = 0; a[x].orphan_age = 0
#ifdef COARSE
/* No lock is modelled, so a transaction that comes late finds out that others were faster. */
#define ORPHANS_TOKEN(x) (a[x].orphan_old -> OLD(x) : TOKEN(x))
#define ORPHAN_WORKS(x) (a[x].orphan != RELEASE || (gate_token == ORPHANS_TOKEN(x) && row_token == ORPHANS_TOKEN(x)))
#else
#define ORPHAN_WORKS(x) true
#endif

inline row_changes() {
    for (k : 0 .. N - 1) {
        if :: a[k].same -> forget_watch(k); a[k].equal = 0 :: else fi;
#ifdef COARSE
        if :: a[k].orphan != NOTHING && a[k].orphan != RELEASE -> drop_orphan(k) :: else fi
#endif
    }
    k = 0; silence = 0
}

inline gate_changes() {
    for (k : 0 .. N - 1) {
        a[k].moved = a[k].doubt;
        a[k].behind = (a[k].phase == ASK || a[k].phase == PASS || a[k].phase == TAKE);
        a[k].superseded = IS_GRANTED(k)
    }
    k = 0
}

inline delete_row() { row_token = NOBODY; row_left = 0; row_sent = 0; row_changes() }

inline ask_for_a_lease() {
#ifndef ANY_DATABASE_CLOCK
    new_left = LEASE;
#endif
#ifndef WRONG_CLOCKS
    new_sent = a[i].proven;
#endif
    skip
}

inline take_orphans_lease() {
#ifndef ANY_DATABASE_CLOCK
    new_left = LEASE;
#endif
#ifndef WRONG_CLOCKS
    new_sent = a[i].orphan_age;
#endif
    skip
}

inline renew_inside() { row_sent = 0; row_left = 0; row_changes(); a[i].proven = 0 }

#define write_row(who) row_token = who; row_left = new_left; row_sent = new_sent; row_changes()

#define unlock(owner) \
    if :: gate_lock == owner -> gate_lock = NOBODY :: else fi; \
    if :: row_lock == owner -> row_lock = NOBODY; new_left = 0; new_sent = 0 :: else fi

inline check_silence() {
#if !defined(UNTIMED) && !defined(TRACE)
    no_holder_that_beats_is_robbed = silence >= WATCH;
    assert(no_holder_that_beats_is_robbed);
#endif
#ifdef PROMPT
    k = 0;
    do
    :: k < N && row_token == TOKEN(k) -> no_holder_that_comes_back_is_robbed = !HOLDING(k); break
    :: k < N && row_token != TOKEN(k) -> k++
    :: k == N -> break
    od;
    k = 0;
    assert(no_holder_that_comes_back_is_robbed);
#endif
    skip
}

inline apply(WORK_, OLD_, WHO_) {
    if
    :: WORK_ == GRANT || WORK_ == TAKEOVER ->
        if :: WORK_ == TAKEOVER -> check_silence() :: else fi;
        gate_changes();
        gate_token = (OLD_ -> OLD(i) : TOKEN(i));
        a[i].superseded = OLD_;
        write_row((OLD_ -> OLD(i) : TOKEN(i)))
    :: WORK_ == CLEAR || WORK_ == FORCED ->
        if
        :: WORK_ == CLEAR -> check_silence()
        :: else ->
            for (k : 0 .. N - 1) { if :: row_token == TOKEN(k) -> a[k].forced = 1 :: else fi }
            k = 0
        fi;
        gate_changes();
        gate_token = NOBODY;
        delete_row()
    :: WORK_ == FENCED ->
        nothing_fenced_commits_after_a_newer_grant = OLD_ || !a[i].superseded;
        assert(nothing_fenced_commits_after_a_newer_grant);
        if :: row_lock == WHO_ -> write_row(row_token) :: else fi
    :: WORK_ == RELEASE -> delete_row()
    :: WORK_ == ADOPTION -> write_row(row_token)
    :: else
    fi;
    new_left = 0; new_sent = 0;
    unlock(WHO_)
}

/* The process forgets its token: it ends, or takes another one. What it has sent under it stays under way. */
inline forget_token() {
    if :: row_token == TOKEN(i) -> row_token = OLD(i) :: else fi;
    if :: gate_token == TOKEN(i) -> gate_token = OLD(i) :: else fi;
    for (b : 0 .. BEATS - 1) {
        if
#ifndef M_RENEW_BY_NAME
        :: a[i].beats[b].state == SENT && row_token == OLD(i) -> a[i].beats[b].old = 1
#else
        :: a[i].beats[b].state == SENT -> a[i].beats[b].old = 1
#endif
        :: else -> a[i].beats[b].state = NONE; a[i].beats[b].age = 0; a[i].beats[b].old = 0
        fi
    }
    b = 0;
    if :: a[i].orphan != NOTHING -> a[i].orphan_old = 1 :: else fi;
    a[i].doubt = 0; a[i].moved = 0; a[i].lost = 0; a[i].superseded = 0; a[i].forced = 0
}

inline forget_look() {
    a[i].equal = 0; a[i].there = 0; a[i].suspect = 0; a[i].ripe = 0; a[i].behind = 0
}

inline end() {
    forget_token(); forget_look(); forget_watch(i);
    a[i].proven = 0; a[i].kind = NOTHING; a[i].trouble = 0;
#ifdef PROMPT
    a[i].phase = REST
#else
    a[i].phase = IDLE
#endif
}

/* Others were in the way: look again. */
inline again() {
    unlock(MAIN(i)); forget_look();
    a[i].proven = 0; a[i].kind = NOTHING;
#ifdef PROMPT
    if
    :: a[i].trouble > 2 -> end()
    :: else -> a[i].phase = WAIT; a[i].trouble = (a[i].trouble -> a[i].trouble : 1)
    fi
#else
    a[i].phase = LOOK
#endif
}

inline watch_on() {
    forget_look();
#ifdef PROMPT
    a[i].phase = WAIT; a[i].trouble = 0
#else
    a[i].phase = LOOK
#endif
}

/* The connection is gone. The server has the transaction still, and will roll it back, or also commit it if COMMIT was
   sent. */
inline cut_off(IS_SENT_) {
    a[i].orphan = a[i].kind; a[i].orphan_sent = IS_SENT_; a[i].orphan_old = 0;
    if :: gate_lock == MAIN(i) -> gate_lock = ORPHAN(i) :: else fi;
    if :: row_lock == MAIN(i) -> row_lock = ORPHAN(i) :: else fi;
    a[i].kind = NOTHING
}

inline take_note() {
#ifndef UNTIMED
    if
    :: !a[i].equal -> a[i].unchanged = 0; a[i].watched = NEVER
#if defined(GAPS) && !defined(M_NO_RESTART)
    :: a[i].equal && a[i].looked > INTERVAL -> a[i].watched = NEVER
#endif
    :: else
    fi;
    a[i].looked = 0;
    if
    :: !a[i].suspect -> a[i].watched = NEVER
    :: a[i].suspect && a[i].watched == NEVER -> a[i].watched = 0
    :: else
    fi;
#endif
    skip
}

#if defined(M_NO_CLOCKS) || defined(WRONG_CLOCKS)
#define A_LEASE_HAS_PASSED(x) true
#elif defined(TRACE)
#define A_LEASE_HAS_PASSED(x) (row_sent >= WHOLE - 1 || c_expr { script[0].is_clock_wrong })
#elif defined(CAREFUL_CLOCKS)
#define A_LEASE_HAS_PASSED(x) (a[x].unchanged >= WHOLE)
#else
#define A_LEASE_HAS_PASSED(x) (row_sent >= WHOLE)
#endif
#if defined(M_EXPIRY_ALONE) || defined(UNTIMED)
#define IS_DEAD(x) a[x].suspect
#else
#define IS_DEAD(x) (a[x].suspect && (IS_UNWATCHED || (a[x].watched != NEVER && a[x].watched >= WATCH - ROUNDING && \
    A_LEASE_HAS_PASSED(x))))
#endif
/* A lock without heartbeats is not watched: it is enough that its lease has passed. Only traces have such locks. */
#ifdef TRACE
#define IS_UNWATCHED (c_expr { !script[now.at - 1].beats } && \
    (row_sent >= LEASE - 1 || c_expr { script[0].is_clock_wrong }))
#else
#define IS_UNWATCHED false
#endif
#ifdef TRACE
#define ROUNDING 1
#else
#define ROUNDING 0
#endif

inline ask() {
    a[i].proven = 0; a[i].phase = PASS;
    if :: a[i].there -> a[i].kind = TAKEOVER :: else -> a[i].kind = GRANT fi
}

inline read_gate() {
    if :: a[i].doubt && a[i].moved && gate_token != TOKEN(i) -> forget_token() :: else fi;
    if
    :: a[i].there && !a[i].ripe -> watch_on()
    :: else ->
        a[i].behind = 0; a[i].phase = ASK;
#ifdef COARSE
        ask()
#endif
    fi
}

#ifdef TRACE
/* What a process does unseen can wait until its next event. */
#define IN_ITS_TURN provided (next == (_pid - 1) / (1 + BEATS))
#else
#define IN_ITS_TURN
#endif

proctype Contender(byte i) IN_ITS_TURN {
    do
    /* Asks for the lock, with a new token. */
    :: d_step { a[i].phase == IDLE -> a[i].phase = LOOK }

    /* One SELECT reads the lock's row, judged by the database's clock. */
    :: d_step { a[i].phase == LOOK && UP && row_token == TOKEN(i) && MAY(LOOKS_MINE) -> DID(LOOKS_MINE); a[i].phase = ADOPT }
    :: d_step { a[i].phase == LOOK && UP && row_token == NOBODY && MAY(LOOKS_FREE) ->
        DID(LOOKS_FREE); forget_watch(i); a[i].phase = GATE }
    :: d_step { a[i].phase == LOOK && UP && row_token != NOBODY && row_token != TOKEN(i) && MAY_SEEM_DEAD && SEES_OWNER &&
            MAY(LOOKS_SUSPECTED) ->
        DID(LOOKS_SUSPECTED);
        a[i].there = 1; a[i].equal = a[i].same; a[i].same = 1; a[i].suspect = 1; a[i].phase = NOTE;
#ifdef TRACE
        take_note(); a[i].ripe = IS_DEAD(i); read_gate()
#endif
        }
    :: d_step { a[i].phase == LOOK && UP && row_token != NOBODY && row_token != TOKEN(i) && MAY_SEEM_LIVE && SEES_OWNER &&
            MAY(LOOKS_LIVE) ->
        DID(LOOKS_LIVE);
        a[i].there = 1; a[i].equal = a[i].same; a[i].same = 1; a[i].suspect = 0; a[i].phase = NOTE }

    /* Reads its own clock, and takes note of what it saw. */
    :: d_step { a[i].phase == NOTE && !a[i].suspect -> end() }
#ifndef PROMPT
    :: d_step { a[i].phase == NOTE && !a[i].suspect -> take_note(); watch_on() }
#endif
    :: d_step { a[i].phase == NOTE && a[i].suspect ->
        take_note(); a[i].ripe = IS_DEAD(i); a[i].phase = GATE;
#ifdef COARSE
        read_gate()
#endif
        }

    /* One SELECT reads the gate. */
    :: d_step { a[i].phase == GATE && UP -> read_gate() }

    /* Counts from now on what it is granted. */
    :: d_step { a[i].phase == ASK -> ask() }
#ifdef CLEARERS
    :: d_step { a[i].phase == ASK && a[i].there -> a[i].proven = 0; a[i].phase = PASS; a[i].kind = CLEAR }
#endif

#ifdef M_ROW_UNSEEN
#define ROW_AS_SEEN true
#else
#define ROW_AS_SEEN a[i].same
#endif
#ifdef COARSE
    /* The whole transaction in one step: its locks keep it apart from all others. */
#ifdef M_NO_GATE
#define GATE_AS_SEEN true
#else
#define GATE_AS_SEEN !a[i].behind
#endif
#define ROW_TO_TAKE(work, is_seen) ((work == GRANT && row_token == NOBODY) || \
    (work == TAKEOVER && row_token != NOBODY && MAY_SEEM_DEAD && is_seen))
    :: d_step { a[i].phase == PASS && GATE_AS_SEEN && ROW_TO_TAKE(a[i].kind, ROW_AS_SEEN) && MAY_DO(a[i].kind) ->
        DID(GRANTED);
        ask_for_a_lease(); apply(a[i].kind, false, MAIN(i)); a[i].doubt = 1; a[i].kind = NOTHING; a[i].phase = DONE }
    :: d_step { a[i].phase == PASS -> again() }
#ifdef LOSSES
    :: d_step { a[i].phase == PASS && LOSABLE && GATE_AS_SEEN && ROW_TO_TAKE(a[i].kind, ROW_AS_SEEN) ->
        a[i].orphan = a[i].kind; a[i].orphan_sent = 1; a[i].orphan_age = a[i].proven; SPEND;
        a[i].doubt = 1; a[i].moved = 0;
#ifdef M_BLIND_COMMIT
        a[i].kind = NOTHING; a[i].phase = DONE
#else
        again()
#endif
        }
#endif
#else
    /* The transaction: the gate, then the row. */
#ifdef M_NO_GATE
    :: d_step { a[i].phase == PASS && UP -> a[i].phase = TAKE }
#else
    :: d_step { a[i].phase == PASS && UP && GATE_FREE(MAIN(i)) && !a[i].behind ->
        gate_lock = MAIN(i); a[i].phase = TAKE }
#ifdef M_GATE_UNSEEN
    :: d_step { a[i].phase == PASS && UP && GATE_FREE(MAIN(i)) && a[i].behind ->
        gate_lock = MAIN(i); a[i].phase = TAKE; fences_grow = false; assert(fences_grow) }
#else
    :: d_step { a[i].phase == PASS && UP && GATE_FREE(MAIN(i)) && a[i].behind -> again() }
#endif
    /* It does not wait for the gate of a dead holder. */
    :: d_step { a[i].phase == PASS && UP && !GATE_FREE(MAIN(i)) && a[i].kind != GRANT -> again() }
#endif
    :: d_step { a[i].phase == TAKE && UP && ROW_FREE(MAIN(i)) && a[i].kind == GRANT && row_token == NOBODY ->
        row_lock = MAIN(i); ask_for_a_lease(); a[i].phase = COMMIT }
    :: d_step { a[i].phase == TAKE && UP && ROW_FREE(MAIN(i)) && a[i].kind == GRANT && row_token != NOBODY ->
        again() }
    :: d_step { a[i].phase == TAKE && UP && ROW_FREE(MAIN(i)) && a[i].kind == TAKEOVER &&
            row_token != NOBODY && MAY_SEEM_DEAD && ROW_AS_SEEN ->
        row_lock = MAIN(i); ask_for_a_lease(); a[i].phase = COMMIT }
    :: d_step { a[i].phase == TAKE && UP && ROW_FREE(MAIN(i)) && a[i].kind == CLEAR &&
            row_token != NOBODY && MAY_SEEM_DEAD && ROW_AS_SEEN ->
        row_lock = MAIN(i); a[i].phase = COMMIT }
    :: d_step { a[i].phase == TAKE && UP && ROW_FREE(MAIN(i)) && a[i].kind != GRANT &&
            (row_token == NOBODY || MAY_SEEM_LIVE || !ROW_AS_SEEN) -> again() }

    /* COMMIT is sent. */
    :: d_step { a[i].phase == COMMIT && UP && a[i].kind == CLEAR -> apply(CLEAR, false, MAIN(i)); end() }
    :: d_step { a[i].phase == COMMIT && UP && a[i].kind != CLEAR ->
        apply(a[i].kind, false, MAIN(i)); a[i].doubt = 1; a[i].moved = 0; a[i].kind = NOTHING;
        a[i].phase = DONE }
    :: d_step { a[i].phase == COMMIT && LOSABLE && a[i].kind == CLEAR -> cut_off(true); SPEND; end() }
    :: d_step { a[i].phase == COMMIT && LOSABLE && a[i].kind != CLEAR ->
        cut_off(true); SPEND; a[i].doubt = 1; a[i].moved = 0;
#ifdef M_BLIND_COMMIT
        a[i].phase = DONE
#else
        again()
#endif
        }
#endif
    /* The answer arrives. A trace does not tell when, so it may have been in time. */
#ifdef TRACE
#define IS_ANSWER_IN_TIME true
#else
#define IS_ANSWER_IN_TIME (a[i].proven < LEASE)
#endif
    :: d_step { a[i].phase == DONE && IS_ANSWER_IN_TIME ->
        forget_look(); forget_watch(i); a[i].doubt = 0; a[i].moved = 0; a[i].trouble = 0; a[i].phase = HOLD;
#ifdef M_COUNTS_FROM_THE_ANSWER
        a[i].proven = 0;
#endif
        check_trust() }
#ifdef UNTIMED
    :: d_step { a[i].phase == DONE -> again() }
#else
    :: d_step { a[i].phase == DONE && a[i].proven >= LEASE -> again() }
#endif

    /* The row has its token: an earlier COMMIT was carried out. */
    :: d_step { a[i].phase == ADOPT && UP && a[i].doubt && gate_token == TOKEN(i) -> a[i].proven = 0; a[i].phase = RENEW }
    :: d_step { a[i].phase == ADOPT && UP && !(a[i].doubt && gate_token == TOKEN(i)) -> again() }
#ifdef COARSE
    :: d_step { a[i].phase == RENEW && row_token == TOKEN(i) && MAY(RENEWED) ->
        DID(RENEWED);
        ask_for_a_lease(); apply(ADOPTION, false, MAIN(i)); a[i].phase = ADOPTED }
    :: d_step { a[i].phase == RENEW -> again() }
#else
    :: d_step { a[i].phase == RENEW && UP && ROW_FREE(MAIN(i)) && row_token == TOKEN(i) ->
        row_lock = MAIN(i); ask_for_a_lease(); a[i].kind = ADOPTION; a[i].phase = CONFIRM }
    :: d_step { a[i].phase == RENEW && UP && ROW_FREE(MAIN(i)) && row_token != TOKEN(i) -> again() }
    :: d_step { a[i].phase == CONFIRM && UP -> apply(ADOPTION, false, MAIN(i)); a[i].kind = NOTHING; a[i].phase = ADOPTED }
    :: d_step { a[i].phase == CONFIRM && LOSABLE -> cut_off(true); SPEND; again() }
#endif
    :: d_step { a[i].phase == ADOPTED ->
        forget_look(); forget_watch(i); a[i].doubt = 0; a[i].moved = 0; a[i].trouble = 0; a[i].phase = HOLD;
        check_trust() }

    /* A block of lease.atomic(). */
#ifdef M_NO_FENCE
#define GATE_IS_MINE true
#else
#define GATE_IS_MINE (gate_token == TOKEN(i))
#endif
#ifdef COARSE
    :: d_step { a[i].phase == HOLD && FENCES && GATE_IS_MINE && MAY(FENCED_COMMIT) ->
        DID(FENCED_COMMIT);
        apply(FENCED, false, MAIN(i));
#ifdef ONE_HOST
        renew_inside()
#endif
        }
    :: d_step { a[i].phase == HOLD && FENCES && !GATE_IS_MINE -> a[i].lost = 1 }
#else
    :: d_step { a[i].phase == HOLD && !a[i].lost && FENCES -> a[i].phase = ENTER }
    :: d_step { a[i].phase == ENTER && UP && GATE_FREE(MAIN(i)) && GATE_IS_MINE ->
        gate_lock = MAIN(i); a[i].kind = FENCED; a[i].phase = INSIDE }
    :: d_step { a[i].phase == ENTER && UP && GATE_FREE(MAIN(i)) && !GATE_IS_MINE -> a[i].lost = 1; a[i].phase = HOLD }
    :: d_step { a[i].phase == INSIDE && UP && gate_lock == MAIN(i) ->
        apply(FENCED, false, MAIN(i)); a[i].kind = NOTHING; a[i].phase = HOLD }
    :: d_step { a[i].phase == INSIDE && LOSABLE -> cut_off(true); SPEND; a[i].phase = HOLD }
#ifndef PROMPT
    /* The block fails, or the server ends its transaction. */
    :: d_step { a[i].phase == INSIDE -> unlock(MAIN(i)); a[i].kind = NOTHING; a[i].phase = HOLD }
#endif
#endif

    /* The body is over: the gate, then the row. */
    :: d_step { a[i].phase == HOLD -> a[i].phase = LEAVE }
#ifdef M_RELEASE_BY_NAME
#define MINE(token) true
#else
#define MINE(token) (token == TOKEN(i))
#endif
#ifdef COARSE
    :: d_step { a[i].phase == LEAVE && MINE(gate_token) && MINE(row_token) && row_token != NOBODY && MAY(RELEASED) ->
        DID(RELEASED);
        apply(RELEASE, false, MAIN(i)); end() }
    :: d_step { a[i].phase == LEAVE -> end() }
#ifdef LOSSES
    :: d_step { a[i].phase == LEAVE && LOSABLE && MINE(gate_token) && MINE(row_token) && row_token != NOBODY ->
        a[i].orphan = RELEASE; a[i].orphan_sent = 1; SPEND }
#endif
#else
    :: d_step { a[i].phase == LEAVE && UP && GATE_FREE(MAIN(i)) && MINE(gate_token) ->
        gate_lock = MAIN(i); a[i].kind = RELEASE; a[i].phase = DELETE }
    :: d_step { a[i].phase == LEAVE && UP && GATE_FREE(MAIN(i)) && !MINE(gate_token) -> end() }
    :: d_step { a[i].phase == DELETE && UP && ROW_FREE(MAIN(i)) && MINE(row_token) && row_token != NOBODY ->
        row_lock = MAIN(i); a[i].phase = FINISH }
    :: d_step { a[i].phase == DELETE && UP && ROW_FREE(MAIN(i)) && !(MINE(row_token) && row_token != NOBODY) ->
        unlock(MAIN(i)); end() }
    :: d_step { a[i].phase == FINISH && UP ->
        apply(RELEASE, false, MAIN(i)); end() }
    :: d_step { a[i].phase == FINISH && LOSABLE -> cut_off(true); SPEND; a[i].phase = LEAVE }
#endif

#ifndef PROMPT
    /* Anything that waits or fails: the statement's time-out, a cut connection. */
    :: d_step { a[i].phase == PASS || a[i].phase == TAKE || a[i].phase == RENEW -> again() }
    /* It gives up, and releases what may have been granted as well as it can. */
    :: d_step { a[i].phase == LOOK && !a[i].doubt -> end() }
    :: d_step { a[i].phase == LOOK && a[i].doubt -> forget_look(); forget_watch(i); a[i].phase = LEAVE }
    :: d_step { a[i].phase == LEAVE || a[i].phase == DELETE -> unlock(MAIN(i)); end() }
    :: d_step { a[i].phase == ENTER -> a[i].phase = HOLD }
    /* It dies, and starts again at some time. Its open transaction is rolled back at some time. */
    :: d_step { a[i].phase != IDLE && !HAS_LOCKS(i) && MAY(DIED) -> DID(DIED); end() }
#ifdef TRACE
    :: d_step { a[i].phase == IDLE && MAY(DIED) -> DID(DIED) }
    :: d_step { a[i].phase == HOLD && MAY(STARTED) -> DID(STARTED) }
    /* The looks of a clear are not in the trace, so only what it leads to is judged. */
    :: d_step { row_token != NOBODY && silence >= WATCH - 1 && MAY(CLEARED) -> DID(CLEARED); apply(FORCED, false, NOBODY) }
    :: d_step { row_token != NOBODY && MAY(FORCED_CLEAR) -> DID(FORCED_CLEAR); apply(FORCED, false, NOBODY) }
#endif
#ifndef COARSE
    :: d_step { a[i].phase != IDLE && HAS_LOCKS(i) && a[i].orphan == NOTHING -> cut_off(false); end() }
#endif
    :: d_step { a[i].phase != IDLE && HAS_LOCKS(i) && a[i].orphan != NOTHING -> unlock(MAIN(i)); end() }
#else
    :: d_step { a[i].phase != DEAD && deaths > 0 && a[i].orphan == NOTHING ->
        deaths--; if :: HAS_LOCKS(i) -> cut_off(false) :: else -> a[i].kind = NOTHING fi; a[i].phase = DEAD }
#endif

#if !defined(COARSE) || defined(LOSSES)
    /* The server ends what it has of a lost connection. */
    :: d_step { a[i].orphan != NOTHING && a[i].orphan_sent && ORPHAN_WORKS(i) && MAY_DO(a[i].orphan) ->
        DID(LOST_COMMIT);
#ifdef COARSE
        take_orphans_lease();
#endif
        apply(a[i].orphan, a[i].orphan_old, ORPHAN(i)); drop_orphan(i) }
    :: d_step { a[i].orphan != NOTHING -> unlock(ORPHAN(i)); drop_orphan(i) }
#endif
    od
}

#ifdef M_RENEW_BY_NAME
#define ROW_OF_BEAT(i, n) (row_token != NOBODY)
#else
#define ROW_OF_BEAT(i, n) (row_token == (a[i].beats[n].old -> OLD(i) : TOKEN(i)))
#endif
#define BEAT a[i].beats[n]
#ifdef TRACE
#define BEAT_IS_DUE true
#else
#define BEAT_IS_DUE (a[i].proven >= INTERVAL)
#endif

inline drop_beat() { BEAT.state = NONE; BEAT.age = 0; BEAT.old = 0 }

proctype Heartbeat(byte i; byte n) IN_ITS_TURN {
    do
    :: d_step { HOLDING(i) && !a[i].lost && BEAT.state == NONE && BEAT_IS_DUE ->
        BEAT.state = SENT; BEAT.age = 0 }
    /* The statement arrives, perhaps late. */
    :: d_step { BEAT.state == SENT && UP && ROW_FREE(LOCK_BEAT) && ROW_OF_BEAT(i, n) && MAY_BEAT(RENEWED) ->
#ifdef TRACE
        DID(RENEWED);
#endif
#ifndef ANY_DATABASE_CLOCK
        row_left = LEASE;
#endif
#ifndef WRONG_CLOCKS
        row_sent = (BEAT.age < row_sent -> BEAT.age : row_sent);
#endif
        row_changes();
        if :: BEAT.old -> drop_beat() :: else -> BEAT.state = KEPT fi }
    :: d_step { BEAT.state == SENT && UP && ROW_FREE(LOCK_BEAT) && !ROW_OF_BEAT(i, n) ->
        if :: BEAT.old -> drop_beat() :: else -> BEAT.state = GONE; BEAT.age = 0 fi }
    /* The answer arrives. A heartbeat that finds no row during the release is not a loss. */
    :: d_step { BEAT.state == KEPT ->
#ifdef M_COUNTS_FROM_THE_ANSWER
        a[i].proven = 0;
#else
        if :: HOLDING(i) && BEAT.age < a[i].proven -> a[i].proven = BEAT.age :: else fi;
#endif
        drop_beat(); check_trust() }
    :: d_step { BEAT.state == GONE -> if :: HOLDING(i) -> a[i].lost = 1 :: else fi; drop_beat() }
    /* The statement is lost, or its answer. */
#ifdef PROMPT
    :: d_step { BEAT.state != NONE && !UP -> drop_beat() }
#else
    :: d_step { BEAT.state != NONE -> drop_beat() }
#endif
    od
}

#define older(number, most) if :: number < most -> number++ :: else fi

#ifdef COARSE
#define NEW_LOCK false
#else
#define NEW_LOCK true
#endif
#define WRITES(work) (work == GRANT || work == TAKEOVER || work == ADOPTION)
#if N == 1
#define NEW_ROW WRITES_ROW(0)
#elif N == 2
#define NEW_ROW (WRITES_ROW(0) || WRITES_ROW(1))
#else
#define NEW_ROW (WRITES_ROW(0) || WRITES_ROW(1) || WRITES_ROW(2))
#endif
#define WRITES_ROW(x) ((row_lock == MAIN(x) && WRITES(a[x].kind)) || (row_lock == ORPHAN(x) && WRITES(a[x].orphan)))
#ifdef WRONG_CLOCKS
#define OLDEST LEASE
#else
#define OLDEST WHOLE
#endif

inline tick() {
    for (k : 0 .. N - 1) {
        if
        :: HOLDING(k) -> older(a[k].proven, LEASE)
        :: a[k].phase == PASS || a[k].phase == TAKE || a[k].phase == COMMIT || a[k].phase == DONE ||
            a[k].phase == RENEW || a[k].phase == CONFIRM || a[k].phase == ADOPTED -> older(a[k].proven, OLDEST)
        :: else -> a[k].proven = 0
        fi;
        if :: a[k].orphan_sent && a[k].orphan != RELEASE && !NEW_LOCK -> older(a[k].orphan_age, OLDEST) :: else fi;
        if
        :: a[k].same ->
            if :: a[k].watched != NEVER -> older(a[k].watched, WATCH) :: else fi;
#ifdef CAREFUL_CLOCKS
            older(a[k].unchanged, WHOLE);
#endif
#ifdef GAPS
            older(a[k].looked, INTERVAL + 1);
#endif
            skip
        :: else
        fi;
#ifdef PROMPT
        if :: a[k].trouble -> older(a[k].trouble, 3) :: else fi;
        if :: a[k].phase == WAIT -> a[k].phase = LOOK :: a[k].phase == REST -> a[k].phase = IDLE :: else fi;
#endif
        for (b : 0 .. BEATS - 1) {
            if
            :: a[k].beats[b].state == SENT -> older(a[k].beats[b].age, OLDEST)
            :: a[k].beats[b].state == KEPT -> older(a[k].beats[b].age, LEASE)
            :: else
            fi
        }
    }
    k = 0; b = 0;
    if :: row_token != NOBODY ->
#ifndef WRONG_CLOCKS
        older(row_sent, WHOLE);
#endif
        if :: row_left > 0 -> row_left-- :: else fi;
        older(silence, WATCH)
    :: else
    fi;
    if :: row_lock != NOBODY ->
#ifndef WRONG_CLOCKS
        if :: NEW_ROW -> older(new_sent, WHOLE) :: else fi;
#endif
        if :: new_left > 0 -> new_left-- :: else fi
    :: else
    fi
}

#ifdef PROMPT
#define BEAT_SETTLED(x, n) ((a[x].beats[n].state == NONE && (a[x].lost || a[x].proven < INTERVAL)) || \
    (a[x].beats[n].state == SENT && !ROW_FREE(LOCK_BEAT)))
#define SETTLED(x) (!UP || a[x].phase == DEAD || a[x].phase == WAIT || a[x].phase == REST || \
    ((a[x].phase == HOLD || a[x].phase == INSIDE) && BEAT_SETTLED(x, 0)) || \
    (a[x].phase == ENTER && BEAT_SETTLED(x, 0) && !GATE_FREE(MAIN(x))) || \
    ((a[x].phase == PASS || a[x].phase == LEAVE) && !GATE_FREE(MAIN(x))) || \
    ((a[x].phase == TAKE || a[x].phase == RENEW || a[x].phase == DELETE) && !ROW_FREE(MAIN(x))))
#if N == 1
#define TIME_MAY_PASS SETTLED(0)
#elif N == 2
#define TIME_MAY_PASS (SETTLED(0) && SETTLED(1))
#else
#define TIME_MAY_PASS (SETTLED(0) && SETTLED(1) && SETTLED(2))
#endif
#elif defined(TRACE)
#define TIME_MAY_PASS c_expr { now.ticks < script[now.at].latest }
#else
#define TIME_MAY_PASS true
#endif

proctype Clock() {
    do
    :: d_step { TIME_MAY_PASS ->
#ifdef TRACE
        ticks++;
#endif
        tick() }
    od
}

#ifdef STEPS
/* The database's clock is set ahead, or back. */
proctype Stepper() {
#if STEPS < 255
    byte steps = STEPS;
#define MAY_STEP steps > 0
#define STEP steps--
#else
#define MAY_STEP true
#define STEP skip
#endif
    do
    :: d_step { MAY_STEP && row_left > 0 ->
        STEP; row_left--; if :: row_lock != NOBODY && new_left > 0 -> new_left-- :: else fi }
    :: d_step { MAY_STEP && row_token != NOBODY && row_left < FAR ->
        STEP; row_left++; if :: row_lock != NOBODY && new_left < FAR -> new_left++ :: else fi }
    od
}
#endif

#ifdef OUTAGES
proctype Outage() {
    do
    :: d_step { outages > 0 && !is_down -> is_down = 1; outages-- }
    :: d_step { is_down -> is_down = 0 }
    od
}
#endif

#ifdef TRACE
bool there_is_more = true;

proctype Reader() {
    d_step { c_expr { now.at == length } -> there_is_more = false; assert(there_is_more) }
}
#endif

init {
    atomic {
#ifdef TRACE
        c_code { read_trace(); now.next = script[0].actor; };
#endif
        byte j, n;
        for (j : 0 .. N - 1) {
            a[j].phase = IDLE; a[j].kind = NOTHING; a[j].orphan = NOTHING; a[j].watched = NEVER;
            for (n : 0 .. BEATS - 1) { a[j].beats[n].state = NONE }
        }
        for (j : 0 .. N - 1) {
            run Contender(j);
#ifndef UNTIMED
            for (n : 0 .. BEATS - 1) { run Heartbeat(j, n) }
#endif
        }
#ifndef UNTIMED
        run Clock();
#endif
#ifdef STEPS
        run Stepper();
#endif
#ifdef TRACE
        run Reader();
#endif
#ifdef OUTAGES
        run Outage();
#endif
    }
}

#define ACQUIRES(x) (a[x].phase == LOOK || a[x].phase == NOTE || a[x].phase == GATE || a[x].phase == ASK || \
    a[x].phase == PASS || a[x].phase == TAKE || a[x].phase == COMMIT || a[x].phase == DONE || a[x].phase == ADOPT || \
    a[x].phase == RENEW || a[x].phase == CONFIRM || a[x].phase == ADOPTED || a[x].phase == WAIT)
#ifdef LIVE_SOMEBODY
ltl somebody_gets_the_lock { []<> (HOLDING(0) || HOLDING(N - 1)) }
#endif
#ifdef LIVE_END
ltl every_acquire_ends { [] (ACQUIRES(0) -> <> !ACQUIRES(0)) }
#endif
