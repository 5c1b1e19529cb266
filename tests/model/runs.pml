/* One run of a command: its supervisor, executor and guard, as `django_singlejob/running/` has them now, and a successor
   elsewhere. `protocol.pml` has the lock itself. See `configurations.py` for the forms in which it is checked.

   Time goes in ticks of half a grace. The age is that of the last heartbeat. Anything may take any time, except: the
   threads that watch the clock (the supervisor's, the executor's own, the guard) do what is due before the next tick,
   unless they are stopped; SIGKILL ends a process before the next tick; a guard starts within a tick. The supervisor's
   main thread does so only with PROMPT: it may hang in a driver.

   Before each step, the supervisor or the guard may be stopped, go on, or be killed, and the executor be killed; with
   FAULTS at most so often. A body heeds SIGTERM; or is stubborn, and heeds SIGKILL alone; or frozen: it holds the GIL or
   is stopped, so that its own watch does not run either; or it hangs before it begins.

   What is left out:

   * A heartbeat is one step, which the database may refuse. One whose answer is late lets the body end sooner.
   * Signals, time limits and stops by users end a body as a lost lease does, so only the latter is here. The main thread
     may fail anywhere while it waits, which ends the run as well. With LIVE, no heartbeat gets through from when a body
     has no end: it would go on for ever. Then no executor has waited, either.
   * A success is not told from a failure, nor a success of an executor that is killed while it leaves from one before.
   * One run, one order: not the next run of the same executor, nor the worker's tasks, a shell command, a forked executor.
   * Not modelled: process groups and descendants, output, a suspended machine, clocks that differ, a process that SIGKILL
     cannot end yet, the block that is the only writer on SQLite, systems without pidfds.
*/
#ifndef LEASE
#define LEASE 2
#endif
#define GRACE 2
#define EXPIRED (LEASE + 2 * GRACE)
#ifdef M_GUARD_LATE
#define GUARD_KILLS EXPIRED
#else
#define GUARD_KILLS (LEASE + GRACE + GRACE / 2)
#endif
#define NEVER 255
#define WHOLE 2

mtype:life = { ABSENT, STARTING, UP, STOPPED, DEAD };
mtype:at = { PREPARE, TAKE, TELL, WRITE, SEND, WAIT, COLLECT, REAP, READ, RELEASE, DONE };
mtype:executor = { NO_ONE, IMPORTS, LISTENS, HAS_ORDER, MAY_BEGIN, BEGUN, RUNS, SAYS, SAID, LEAVES, FREE, ENDED };
mtype:body = { UNKNOWN, HEEDS, STUBBORN, FROZEN, HANGS };
mtype:result = { NOTHING, NOT_BEGUN, DIED, HAS_ENDED };

mtype:life supervisor = UP;
mtype:life guard = ABSENT;
mtype:at at = PREPARE;
mtype:executor x = NO_ONE;
mtype:body body = UNKNOWN;
mtype:result result = NOTHING;
mtype:result recorded = NOTHING;
bit endless, successor, released;
/* Whether the executor has waited for this order since before. */
bit idle;
/* What the guard is told of the run, in its socket or in its memory. */
bit told;
/* The order's file, and the byte that says that it is there. */
bit order, sent;
/* The shared memory: why to end, whether the body has begun, what is written of the message, and its length. */
bit reason, begun, length;
byte written;
/* SIGKILL is sent to the executor. */
bit killed;
byte age, awake;
byte kill_in = NEVER;
byte own_in = NEVER;
#ifdef FAULTS
byte faults = FAULTS;
#define MAY_FAIL (faults > 0)
#define FAIL faults--
#else
#define MAY_FAIL true
#define FAIL skip
#endif

/* For the properties only. */
bit ran, has_begun;
/* Whether they were stopped or killed since the last heartbeat. */
bit supervisor_failed, guard_failed;

bool no_body_lives_beside_a_successor = true;
bool what_began_is_not_said_not_to_have_begun = true;
bool what_is_said_to_have_begun_has_begun = true;
bool what_is_half_written_is_not_read = true;
bool what_was_said_is_read = true;

#define IS_UP (supervisor == UP)
#define IS_ALIVE (x != NO_ONE && x != FREE && x != ENDED)
#define LIVES (x == BEGUN || x == RUNS || x == SAYS || x == SAID || x == LEAVES)
#define WATCHES (IS_UP && (at == WRITE || at == SEND || at == WAIT || at == COLLECT))
#define OWN_WATCHES (LIVES && body != FROZEN)
#define IS_LATE (age >= LEASE)

/* The exception: since the last heartbeat, supervisor and guard were both stopped or killed, and the body's own watch does
   not run. */
#ifdef NO_EXCEPTION
#define IS_EXCUSED false
#else
#define IS_EXCUSED (supervisor_failed && guard_failed && body == FROZEN)
#endif

inline judge() {
    no_body_lives_beside_a_successor = !(successor && LIVES && !IS_EXCUSED);
    assert(no_body_lives_beside_a_successor)
}
inline kill() { if :: IS_ALIVE -> killed = 1 :: else fi }

#if defined(M_TOLD_LATE)
#define AFTER_TAKE WRITE
#define AFTER_TELL WAIT
#define AFTER_WRITE SEND
#define AFTER_SEND TELL
#elif defined(M_BYTE_FIRST)
#define AFTER_TAKE TELL
#define AFTER_TELL SEND
#define AFTER_WRITE WAIT
#define AFTER_SEND WRITE
#else
#define AFTER_TAKE TELL
#define AFTER_TELL WRITE
#define AFTER_WRITE SEND
#define AFTER_SEND WAIT
#endif

#if defined(M_RELEASES_EARLY)
#define IS_OVER (x == FREE || x == ENDED || length)
#elif defined(M_WAITS_FOR_THE_BYTE)
#define IS_OVER (x == FREE)
#else
#define IS_OVER (x == FREE || x == ENDED)
#endif

inline give_back() { result = NOT_BEGUN; at = RELEASE }

/* What has to happen in the main thread before the next tick. */
#define MAIN_IS_DUE (IS_UP && at != DONE && (at != WAIT || IS_OVER))
#ifdef M_GUARD_NOT_REPLACED
#define GUARD_IS_MISSED false
#else
#define GUARD_IS_MISSED (IS_UP && at == WAIT && guard == DEAD)
#endif
#ifdef PROMPT
#define IS_PROMPT (!MAIN_IS_DUE && !GUARD_IS_MISSED)
#define IS_READY_TO_BEAT !GUARD_IS_MISSED
#define IS_GUARDED (guard != STOPPED)
#else
#define IS_PROMPT true
#define IS_READY_TO_BEAT true
#define IS_GUARDED (guard == STARTING || guard == UP)
#endif

/* The supervisor's main thread: `order_steps`, and what is around it. */
active proctype Supervisor() {
    do
    /* No guard, or no executor, can be started. */
    :: d_step { IS_UP && (at == PREPARE || at == TAKE) -> give_back() }
    :: d_step { IS_UP && at == PREPARE -> if :: guard == ABSENT -> guard = STARTING :: else fi; at = TAKE }
    :: d_step { IS_UP && at == TAKE ->
        x = IMPORTS; killed = 0; idle = 0; at = AFTER_TAKE }
#ifndef LIVE
    :: d_step { IS_UP && at == TAKE && x == NO_ONE -> x = LISTENS; idle = 1; at = AFTER_TAKE }
#endif
    :: d_step { IS_UP && at == TELL -> told = 1; at = AFTER_TELL }
    :: d_step { IS_UP && at == WRITE -> order = 1; at = AFTER_WRITE }
    :: d_step { IS_UP && at == SEND -> sent = 1; at = AFTER_SEND;
#ifdef M_BEGUN_WHEN_SENT
        begun = 1
#endif
        }

    :: d_step { IS_UP && at == WAIT && !IS_OVER && age > 0 && !successor && !endless && IS_READY_TO_BEAT ->
        age = 0; awake = 0; supervisor_failed = 0;
        if :: IS_GUARDED -> guard_failed = 0 :: else fi }
#ifndef M_GUARD_NOT_REPLACED
    :: d_step { IS_UP && at == WAIT && guard == DEAD -> guard = STARTING }
#endif
    :: d_step { IS_UP && at == WAIT -> at = COLLECT }
#ifdef M_NOT_BEGUN_EARLY
    :: d_step { IS_UP && at == WAIT && !begun -> give_back() }
#endif
#ifdef M_RELEASES_EARLY
    :: d_step { IS_UP && at == COLLECT -> kill(); told = 0; at = READ }
#else
    :: d_step { IS_UP && at == COLLECT -> kill(); told = 0; awake = 0; kill_in = NEVER; at = REAP }
#endif
    :: d_step { IS_UP && at == REAP && IS_OVER -> at = READ }

    /* An executor that had waited ends before it begins, so another one gets the order. */
    :: d_step { IS_UP && at == READ && !begun && idle && !reason ->
        what_began_is_not_said_not_to_have_begun = !ran; assert(what_began_is_not_said_not_to_have_begun);
        order = 0; sent = 0; at = PREPARE }
    :: d_step { IS_UP && at == READ && !begun && !(idle && !reason) -> give_back() }
    :: d_step { IS_UP && at == READ && begun && length ->
        what_is_half_written_is_not_read = written == WHOLE; assert(what_is_half_written_is_not_read);
        result = HAS_ENDED; at = RELEASE }
    :: d_step { IS_UP && at == READ && begun && !length ->
        what_was_said_is_read = x != FREE; assert(what_was_said_is_read);
        result = DIED; at = RELEASE }

    :: d_step { IS_UP && at == RELEASE ->
        if :: !successor -> recorded = result; released = 1 :: else fi;
        if :: result == NOT_BEGUN -> what_began_is_not_said_not_to_have_begun = !ran
           :: else -> what_is_said_to_have_begun_has_begun = has_begun
        fi;
        assert(what_began_is_not_said_not_to_have_begun);
        assert(what_is_said_to_have_begun_has_begun);
        at = DONE }
    od
}

/* Its thread that ends children in time: `ChildWatch`. */
#define TELLS_LOSS (WATCHES && IS_ALIVE && !killed && IS_LATE && kill_in == NEVER)
#define KILLS (WATCHES && kill_in == 0)
active proctype Watch() {
    do
    :: d_step { TELLS_LOSS -> reason = 1; kill_in = GRACE }
    :: d_step { WATCHES && !IS_LATE && kill_in != NEVER -> kill_in = NEVER }
    :: d_step { KILLS -> kill_in = NEVER;
#ifndef M_WATCH_LEAVES_IT_TO_THE_GUARD
        if :: IS_LATE -> kill() :: else fi
#endif
        }
    od
}
/* The same thread ends a start that takes too long. */
#ifndef M_START_MAY_HANG
active proctype Start() {
    do
    :: d_step { WATCHES && IS_ALIVE && !killed && !begun -> kill() }
    od
}
#endif

/* The executor: `_Server`. */
#define CAN_GO_ON (body != UNKNOWN && body != HANGS)
active proctype Executor() {
    do
    :: d_step { x == IMPORTS -> x = LISTENS }
    :: d_step { x == IMPORTS || (x == HAS_ORDER && CAN_GO_ON) -> x = ENDED }
    :: d_step { x == LISTENS && !sent && supervisor == DEAD -> x = ENDED }
    :: d_step { x == LISTENS && sent -> what_is_half_written_is_not_read = order;
        assert(what_is_half_written_is_not_read); x = HAS_ORDER }
    :: d_step { x == HAS_ORDER && body == UNKNOWN -> body = HEEDS }
    :: d_step { x == HAS_ORDER && body == UNKNOWN -> body = STUBBORN }
    :: d_step { x == HAS_ORDER && body == UNKNOWN -> body = FROZEN }
    :: d_step { x == HAS_ORDER && body == UNKNOWN -> body = HANGS }
#ifdef M_BEGINS_BLINDLY
    :: d_step { x == HAS_ORDER && CAN_GO_ON -> x = MAY_BEGIN }
#else
    :: d_step { x == HAS_ORDER && CAN_GO_ON && !(IS_LATE || reason || supervisor == DEAD) -> x = MAY_BEGIN }
#endif
    :: d_step { x == MAY_BEGIN -> begun = 1; has_begun = 1; x = BEGUN; judge() }
    :: d_step { x == BEGUN -> what_began_is_not_said_not_to_have_begun = recorded != NOT_BEGUN && !ran;
        assert(what_began_is_not_said_not_to_have_begun); ran = 1; x = RUNS }
#ifdef LIVE
    :: d_step { x == RUNS && !endless -> endless = 1 }
#endif
    :: d_step { x == RUNS && (!endless || (body == HEEDS && reason)) -> x = SAYS }
#ifdef M_LENGTH_FIRST
    :: d_step { x == SAYS && !length -> length = 1 }
    :: d_step { x == SAYS && length && written < WHOLE -> written++ }
    :: d_step { x == SAYS && length && written == WHOLE -> x = SAID }
#else
    :: d_step { x == SAYS && written < WHOLE -> written++ }
#ifdef M_BYTE_BEFORE_LENGTH
    :: d_step { x == SAYS && written == WHOLE -> x = FREE }
    :: d_step { x == FREE && !length -> length = 1 }
#else
    :: d_step { x == SAYS && written == WHOLE -> length = 1; x = SAID }
#endif
#endif
    /* What is left clean can carry out another order. The rest ends as any program does. */
    :: d_step { x == SAID && !reason -> x = FREE }
    :: d_step { x == SAID -> x = LEAVES }
    :: d_step { x == LEAVES && !endless -> x = ENDED }
    /* SIGKILL arrives. */
    :: d_step { killed && IS_ALIVE -> x = ENDED; own_in = NEVER; kill_in = NEVER }
    od
}

/* Its thread that ends it if the supervisor does not: `_LeaseWatch`. */
#define OWN_TELLS (OWN_WATCHES && !killed && IS_LATE && own_in == NEVER)
#define OWN_KILLS (OWN_WATCHES && own_in == 0)
#ifndef M_NO_OWN_WATCH
active proctype Own() {
    do
    :: d_step { OWN_TELLS -> reason = 1; own_in = GRACE }
    :: d_step { OWN_KILLS -> own_in = NEVER; if :: IS_LATE -> kill() :: else fi }
    od
}
#endif

#ifdef M_GUARD_IGNORES_STOPPED
#define GUARD_IS_DUE false
#else
#define GUARD_IS_DUE (told && IS_ALIVE && !killed && age >= GUARD_KILLS && awake >= GRACE)
#endif
#define GUARD_ENDS (supervisor == DEAD)
active proctype Guard() {
    do
    :: d_step { guard == STARTING -> guard = UP; awake = 0 }
    :: d_step { guard == UP && GUARD_ENDS -> if :: told -> kill() :: else fi; guard = DEAD }
    :: d_step { guard == UP && GUARD_IS_DUE -> reason = 1; kill() }
    od
}

/* Another server, which looks at the row alone. */
active proctype Successor() {
    do
    :: d_step { !successor && (released || age == EXPIRED) -> successor = 1; judge() }
    od
}

/* From then on, time changes nothing any more. */
#define IS_PAST (successor || (at == DONE && released))
active proctype Nemesis() {
    do
    :: d_step { MAY_FAIL && supervisor == UP && at != DONE -> FAIL; supervisor = STOPPED; supervisor_failed = 1 }
    :: d_step { supervisor == STOPPED -> supervisor = UP }
    :: d_step { MAY_FAIL && supervisor != DEAD && at != DONE -> FAIL; supervisor = DEAD; supervisor_failed = 1 }
    :: d_step { MAY_FAIL && !IS_PAST && guard == UP -> FAIL; guard = STOPPED; guard_failed = 1 }
    :: d_step { guard == STOPPED -> guard = UP }
    :: d_step { MAY_FAIL && !IS_PAST && (guard == STARTING || guard == UP || guard == STOPPED) ->
        FAIL; guard = DEAD; guard_failed = 1 }
    :: d_step { MAY_FAIL && !IS_PAST && IS_ALIVE && !killed -> FAIL; kill() }
#ifdef FAULTS
    :: break
#endif
    od
}

/* What has to happen before the next tick. */
#define IS_KILLED_YET (killed && IS_ALIVE)
#ifdef M_NO_OWN_WATCH
#define OWN_IS_DUE false
#else
#define OWN_IS_DUE (OWN_TELLS || OWN_KILLS)
#endif
#define TIME_MAY_PASS (IS_PROMPT && !IS_KILLED_YET && !TELLS_LOSS && !KILLS && !OWN_IS_DUE && guard != STARTING && \
    !(guard == UP && (GUARD_ENDS || GUARD_IS_DUE)) && !(x == MAY_BEGIN && body != FROZEN))

#define count_down(left) if :: left != NEVER && left > 0 -> left-- :: else fi
active proctype Clock() {
    do
    :: d_step { !IS_PAST && TIME_MAY_PASS ->
        if :: guard == UP && told && IS_LATE && awake < GRACE -> awake++ :: else fi;
        if :: age < EXPIRED -> age++ :: else fi;
        count_down(kill_in);
        count_down(own_in) }
    :: d_step { IS_PAST -> skip }
    od
}

#ifdef LIVE
ltl each_run_ends { <> (((recorded != NOTHING || successor) && !LIVES) || IS_EXCUSED) }
#endif
