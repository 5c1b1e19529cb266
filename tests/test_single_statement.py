"""The grant and the release as one statement each: what they write, when they write nothing, and what may be lost."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from django.db import DataError, IntegrityError, InternalError, OperationalError, connection, transaction

from django_singlejob import Lease, job_lock, single_statement, singleton_job
from django_singlejob.database import timeline
from django_singlejob.database.transactions import sent_now
from django_singlejob.exceptions import DatabaseUnusable
from django_singlejob.locking.acquire import Acquisition
from django_singlejob.locking.clear import clear
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.recording import Writer
from django_singlejob.locking.request import LockRequest, Reason, Refusal
from django_singlejob.models.jobs import gates
from django_singlejob.models.locks import locks
from django_singlejob.models.runs import runs
from django_singlejob.process.clock import DBNow, sleep
from django_singlejob.process.holder import this_process
from django_singlejob.single_statement import Answer, is_ordinary_grant, was_undone
from tests.contract.acts import (
    MINUTE,
    SECOND,
    all_at_once,
    ask,
    everything,
    expire,
    gate,
    is_free,
    last_run,
    lock,
    nth_fence,
    start_run,
    take,
    win,
)
from tests.database.test_errors import an_error
from tests.waiting import PATIENCE, a_moment, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pytest_django import Settings

    from tests.fixtures import Elsewhere
    from tests.proxy import Proxy

pytest_plugins = "tests.fixtures"
pytestmark = [
    pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"]),
    pytest.mark.usefixtures("fresh_process", "breakable_connection", "chosen"),
    pytest.mark.on_database("postgresql"),
]

HISTORY = Writer(2 * SECOND)
SUCCESS = Ending(status="successful", duration=SECOND, acquire_duration=SECOND)
FAILURE = Ending(status="failed", duration=3 * SECOND, is_failure=True, error="It is 100 % broken.", traceback="Here.")
INTERRUPTION = Ending(status="interrupted", duration=MINUTE)
ENDINGS = (SUCCESS, FAILURE, FAILURE, INTERRUPTION, SUCCESS, Ending(status="successful", duration=MINUTE))


@pytest.fixture
def chosen(settings: Settings) -> None:
    settings.SINGLEJOB = {**settings.SINGLEJOB, "SINGLE_STATEMENT": True}


def a_request(name: str = "nightly", **terms: Any) -> LockRequest:
    wanted = {"lease": MINUTE, "heartbeat_interval": None, "holder": this_process()} | terms
    return LockRequest(name=name, **wanted)


def of_job(name: str = "nightly", **terms: Any) -> LockRequest:
    return a_request(name, job_name=name, trigger="call", **terms)


def said(request: LockRequest, token: UUID | None = None) -> Answer:
    return single_statement.ask(single_statement.requested(request, token or uuid4()), HISTORY)


@contextmanager
def requests(naming: str = "") -> Iterator[list[str]]:
    """What this thread sends that contains this name, by its first word; "ONE" is one of the statements."""
    found: list[str] = []

    def note(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if naming in sql:
            found.append("ONE" if sql.startswith("WITH") else sql.split(maxsplit=1)[0])
        return execute(sql, *others)

    with connection.execute_wrapper(note):
        yield found


# --- what they write


def test_a_run_is_two_requests() -> None:
    nightly = singleton_job("nightly")(lambda: "done")
    nightly()
    with requests() as found:
        assert nightly() == "done"
    assert found == ["ONE", "ONE"]
    assert [run.status for run in runs().all()] == ["successful", "successful"]


def test_a_block_is_two_requests() -> None:
    take().release()
    with requests() as found, job_lock("nightly") as lease:
        assert not lease.lost
    assert found == ["ONE", "ONE"]
    assert is_free()


def test_losing_is_one_request_that_writes_nothing() -> None:
    holder = take()
    with requests() as found:
        answer = ask()
    assert found == ["ONE"]
    assert isinstance(answer, Refusal)
    assert (answer.reason, answer.lock and answer.lock.token) == (Reason.HELD, holder.token)
    with transaction.atomic(), connection.cursor() as cursor:
        said(a_request())
        cursor.execute("SELECT pg_current_xact_id_if_assigned()")
        assert cursor.fetchone() == (None,)


def test_rows_are_as_the_portable_path_writes_them(settings: Settings) -> None:
    """Six runs, and a lock without a job."""
    written = []
    for is_single in (True, False):
        settings.SINGLEJOB = {**settings.SINGLEJOB, "SINGLE_STATEMENT": is_single}
        for name in ("nightly", "block"):
            gates().filter(name=name).delete()
        runs().all().delete()
        take("block").release()
        for ending in ENDINGS:
            assert start_run().finish(ending)
        terms: dict[str, Any] = {"heartbeat_interval": SECOND, "queues": ["a", "b"]}
        leases = [start_run(), take("block", **terms)]
        written.append([alike(row) for row in everything()])
        assert all(lease.release() for lease in leases)
    assert written[0] == written[1]


def alike(row: Any) -> dict[str, Any]:
    """What depends neither on the time nor on chance."""
    return {
        name: value is not None if name == "token" or name.endswith("_at") else value
        for name, value in row.items()
        if name != "id"
    }


def setting_the_tenant(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
    """As a project may that has row-level security."""
    if "app.tenant" not in sql:
        with connection.cursor() as cursor:
            cursor.execute("SET app.tenant = '7'")
    return execute(sql, *others)


@pytest.mark.parametrize("around", [nullcontext, lambda: connection.execute_wrapper(setting_the_tenant)])
@pytest.mark.parametrize("table", ["jobstatus", "joblock", "jobrun"])
def test_each_write_has_the_limits_and_is_durable(
    table: str, around: Callable[[], AbstractContextManager[None]]
) -> None:
    """Whatever the session's own settings are, and whatever a project sends before it."""
    start_run().finish(SUCCESS)
    with connection.cursor() as cursor:
        cursor.execute(
            "SET synchronous_commit = off; SET lock_timeout = '1h'; CREATE TEMP TABLE noted (settings text); "
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO noted "
            "SELECT string_agg(setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN "
            "('synchronous_commit', 'lock_timeout', 'statement_timeout'); RETURN NULL; END $$; "
            f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON django_singlejob_{table} "
            "FOR EACH ROW EXECUTE FUNCTION note()"
        )
        try:
            with around(), requests("WITH") as found:
                assert start_run().finish(SUCCESS)
            cursor.execute("SELECT settings FROM noted")
            noted = [settings for (settings,) in cursor.fetchall()]
        finally:
            cursor.execute(f"DROP TRIGGER note ON django_singlejob_{table}; DROP FUNCTION note")
            connection.close()
    assert found == ["ONE", "ONE"]
    assert noted == ["1500 2000 on"] * 2


# --- what is out of the ordinary


def test_without_a_timeline_fences_are_counted_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_silent", {"default"})
    for expected in 1, 2, 3:
        lease = start_run()
        assert lease.fence == expected
        assert lease.release()


def test_a_body_that_turned_the_drivers_autocommit_off_does_not_keep_its_lock(elsewhere: Elsewhere) -> None:
    """Without Django, which still takes it for on. The driver would begin a transaction, and nobody would commit it."""

    @singleton_job
    def nightly() -> None:
        connection.connection.autocommit = False

    for expected in ["successful"], ["successful", "successful"]:
        nightly()
        assert elsewhere(is_free).result()
        assert elsewhere(lambda: [run.status for run in runs().all()]).result() == expected


def test_nothing_is_granted_in_a_transaction_that_the_driver_would_begin() -> None:
    take().release()
    connection.connection.autocommit = False
    assert not is_ordinary_grant(a_request(), HISTORY)
    with pytest.raises(DatabaseUnusable, match="autocommit"):
        take()


OUT_OF_THE_ORDINARY: dict[str, dict[str, Any]] = {
    "paused": {"paused": True},
    "paused for now": {"paused": True, "paused_until": DBNow() + MINUTE},
    "an abandoned run": {"last_status": "abandoned"},
    "an older timeline": {"fence": 5},
    "a recent start": {"last_started_at": DBNow() - SECOND},
    "our own token": {"token": UUID(int=7)},
}


@pytest.mark.parametrize("changes", OUT_OF_THE_ORDINARY.values(), ids=OUT_OF_THE_ORDINARY)
def test_such_a_gate_is_not_passed(changes: dict[str, Any]) -> None:
    start_run().finish(SUCCESS)
    gates().filter(name="nightly").update(last_started_at=DBNow() - 2 * MINUTE)
    gates().filter(name="nightly").update(**changes)
    before = everything()
    assert said(of_job(min_interval=MINUTE), UUID(int=7)) == Answer()
    assert everything() == before


def test_a_gate_whose_pause_has_ended_by_itself_is_passed() -> None:
    start_run().finish(SUCCESS)
    gates().filter(name="nightly").update(paused=True, paused_until=DBNow())
    assert said(of_job()).grant


def test_a_gate_that_is_not_there_is_left_to_the_portable_path() -> None:
    assert said(of_job()) == Answer()
    assert start_run().fence == nth_fence(1)


def test_a_lock_without_a_job_has_no_use_for_what_the_job_remembers() -> None:
    take().release()
    gates().filter(name="nightly").update(paused=True, last_status="abandoned")
    with requests() as found:
        take()
    assert found == ["ONE"]
    assert gate().last_started_at is None


def test_a_start_in_the_future_does_not_hold_up_the_job() -> None:
    start_run().finish(SUCCESS)
    gates().filter(name="nightly").update(last_started_at=DBNow() + 2 * MINUTE)
    assert said(of_job(min_interval=MINUTE)).grant


@pytest.mark.parametrize("arrange", [lambda: None, expire], ids=["alive", "stale"])
def test_the_row_in_the_way_is_read_as_a_look_reads_it(arrange: Callable[[], object]) -> None:
    start_run(heartbeat_interval=SECOND, queues=["a"])
    arrange()
    answer, looked = said(of_job()).lock, lock()
    assert answer is not None
    moving = ("_state", "now")
    assert {name: value for name, value in vars(answer).items() if name not in moving} == {
        name: value for name, value in vars(looked).items() if name not in moving
    }
    assert abs(answer.now - looked.now) < MINUTE
    assert (answer._state.db, answer._state.adding) == ("default", False)


def test_a_row_that_cannot_be_read_is_not_taken_for_free() -> None:
    take()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_singlejob_joblock SET progress = %s", [f"[{5000 * '9'}]"])
    answer = ask()
    assert isinstance(answer, Refusal)
    assert answer.reason == Reason.UNDECIDED


# --- others


def test_the_faster_caller_at_the_gate_wins(elsewhere: Elsewhere) -> None:
    """It has the gate's row, so the statement waits, and then finds another fence."""
    start_run().finish(SUCCESS)
    assert beside(elsewhere, win, lambda: said(of_job())) == Answer()
    assert lock().hostname == "elsewhere"
    assert gate().fence == nth_fence(2)
    assert runs().count() == 1


def beside(elsewhere: Elsewhere, others: Callable[[], object], act: Callable[[], Any]) -> Any:
    """The value of ``act``, which has to wait for another transaction with these writes."""
    begun, end = Event(), Event()
    other = elsewhere(holding(others, begun, end))
    assert begun.wait(PATIENCE)
    waiting = elsewhere(act)
    a_moment()
    end.set()
    other.result()
    return waiting.result()


def test_a_pause_in_the_last_moment_is_heeded(elsewhere: Elsewhere) -> None:
    """It changes the gate, but not the fence."""
    start_run().finish(SUCCESS)
    assert beside(elsewhere, lambda: gates().pause("nightly"), lambda: said(of_job())) == Answer()
    assert is_free()


def test_a_release_deletes_the_row_that_a_heartbeat_has_changed_in_the_last_moment(elsewhere: Elsewhere) -> None:
    start_run().finish(SUCCESS)
    lease = start_run()
    beat = partial(locks().renew, "nightly", lease.token, MINUTE, sent_now())
    assert beside(elsewhere, beat, lambda: single_statement.release(lease.grant, SUCCESS, HISTORY))
    assert is_free()
    assert last_run().status == "successful"


def holding(act: Callable[[], object], begun: Event, end: Event) -> Callable[[], None]:
    def hold() -> None:
        with transaction.atomic():
            act()
            begun.set()
            assert end.wait(PATIENCE)

    return hold


def test_a_row_that_is_there_already_undoes_everything() -> None:
    start_run().finish(SUCCESS)
    token = last_run().token
    start_run().finish(SUCCESS)
    before = everything()
    with pytest.raises(IntegrityError):
        said(of_job(), token)
    assert everything() == before


def answer_of(*, is_single: bool) -> Lease | Refusal:
    acquisition = Acquisition(a_request())
    if not is_single:
        acquisition._ask_at_once = lambda: None  # type: ignore[method-assign]
    while isinstance(answer := acquisition.ask(), float):
        sleep(answer)
    return answer


@pytest.mark.slow
def test_servers_with_and_without_the_setting_exclude_each_other() -> None:
    take().release()
    ways = [partial(answer_of, is_single=True), partial(answer_of, is_single=False)]
    for number in range(2, 12):
        leases = [answer for answer in all_at_once(ways * 3) if isinstance(answer, Lease)]
        assert [lease.fence for lease in leases] == [nth_fence(number)]
        assert leases[0].release()


ISOLATION = ("read committed", "repeatable read", "serializable")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATION)
def test_one_of_many_wins_at_every_isolation_level(isolation: str) -> None:
    level = isolation.replace(" ", "\\ ")
    with connected_with(options=f"-c default_transaction_isolation={level}"):
        take().release()
        for number in range(2, 12):
            answers = all_at_once([ask] * 6)
            leases = [answer for answer in answers if isinstance(answer, Lease)]
            assert [lease.fence for lease in leases] == [nth_fence(number)]
            assert leases[0].release()


@contextmanager
def connected_with(**options: Any) -> Iterator[None]:
    """New connections have these options."""
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **options})
        # Django asks this once for each wrapper.
        patch.setattr(connection.features, "uses_server_side_binding", "server_side_binding" in options, raising=False)
        yield
        connection.close()


# --- what is lost


@contextmanager
def through(proxy: Proxy) -> Iterator[None]:
    """This thread's connection goes through the proxy, unencrypted because a proxy cannot read inside TLS."""
    with pytest.MonkeyPatch.context() as patch, connected_with(sslmode="disable", gssencmode="disable"):
        for key, value in {"HOST": "127.0.0.1", "PORT": str(proxy.port)}.items():
            patch.setitem(connection.settings_dict, key, value)
        yield
        connection.close()


@pytest.mark.parametrize("is_a_run", [True, False], ids=["run", "block"])
def test_a_grant_whose_answer_is_lost_is_adopted(proxy: Proxy, *, is_a_run: bool) -> None:
    begin = start_run if is_a_run else take
    begin().release()
    runs().update(status="successful")
    with through(proxy):
        proxy.cut_answer_to(b"WITH seen")
        lease = begin()
        assert proxy.answer_cut.is_set()
    assert lease.fence == gate().fence == nth_fence(2)
    assert (lock().token, gate().token) == (lease.token, lease.token)
    if is_a_run:
        assert lease.grant.entry
        assert (last_run().pk, last_run().fence) == (lease.grant.entry.pk, lease.fence)
    assert lease.finish(SUCCESS if is_a_run else None)


@pytest.mark.parametrize("is_a_run", [True, False], ids=["run", "block"])
def test_a_grant_that_never_arrives_is_asked_for_again(proxy: Proxy, *, is_a_run: bool) -> None:
    begin = start_run if is_a_run else take
    begin().release()
    with through(proxy):
        proxy.cut_request(b"WITH seen")
        lease = begin()
        assert proxy.request_cut.is_set()
    assert lease.fence == gate().fence == nth_fence(2)
    assert runs().count() == 2 * is_a_run
    assert lease.release()


@pytest.mark.parametrize("direction", ["request", "answer"])
def test_a_release_in_doubt_is_settled(proxy: Proxy, direction: str) -> None:
    start_run().finish(SUCCESS)
    with through(proxy):
        lease = start_run()
        (proxy.cut_request if direction == "request" else proxy.cut_answer_to)(b"WITH held")
        assert lease.finish(SUCCESS)
    assert is_free()
    assert last_run().status == "successful"
    assert gate().run_count == 2


def test_a_grant_that_was_lost_and_cleared_is_another_one(proxy: Proxy) -> None:
    """It was granted, but before the caller looks again, somebody clears the lock by force."""
    start_run().finish(SUCCESS)
    acquisition = Acquisition(of_job())
    with through(proxy):
        proxy.cut_answer_to(b"WITH seen")
        assert isinstance(acquisition.ask(), float)
    first = lock().token
    assert clear(lock(), force=True)
    lease = acquisition.ask()
    assert isinstance(lease, Lease)
    assert lease.token != first
    assert [run.status for run in runs().order_by("pk")] == ["successful", "abandoned", "running"]


def test_a_statement_that_waits_longer_than_its_client_lives_grants_nothing_beside_the_next(
    elsewhere: Elsewhere, proxy: Proxy
) -> None:
    """The server has it, and waits for the gate. Its client is gone."""
    start_run().finish(SUCCESS)
    begun, end = Event(), Event()
    other = elsewhere(holding(lambda: gates().touch("nightly"), begun, end))
    assert begun.wait(PATIENCE)
    with through(proxy):
        proxy.fall_silent_at(b"WITH seen")
        ghost = elsewhere(lambda: said(of_job()))
        assert proxy.fell_silent.wait(PATIENCE)
        a_moment()
    proxy.go_down()
    with pytest.raises(OperationalError):
        ghost.result()
    end.set()
    other.result()
    answer = ask(job_name="nightly", trigger="call", wait=timedelta())
    eventually(lambda: not is_under_way("WITH seen%"))
    (row,) = locks().all()
    if isinstance(answer, Lease):
        assert (row.token, gate().token, gate().fence) == (answer.token, answer.token, answer.fence)
    else:
        assert row.token == gate().token


def is_under_way(statement: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'active' AND query LIKE %s)",
            [statement],
        )
        return bool(cursor.fetchone()[0])


def test_a_ghost_whose_token_has_a_grant_by_now_is_refused() -> None:
    """A pooler sends the statement when the run that was granted later under its token is over."""
    start_run().finish(SUCCESS)
    lease = start_run()
    ghost = single_statement.requested(of_job(), lease.token)
    assert lease.finish(SUCCESS)
    assert single_statement.ask(ghost, HISTORY) == Answer()
    assert start_run().finish(SUCCESS)  # and now the gate has another token
    with pytest.raises(IntegrityError):
        single_statement.ask(ghost, HISTORY)
    assert is_free()


def test_a_release_that_finds_no_lease_changes_nothing() -> None:
    start_run().finish(SUCCESS)
    lease = start_run()
    locks()._raw_delete("default")
    before = everything()
    assert single_statement.release(lease.grant, SUCCESS, Writer(2 * SECOND)) is None
    assert everything() == before
    assert not lease.finish(SUCCESS)


def test_nobody_releases_the_lock_of_another() -> None:
    lease = take()
    expire()
    successor = take()
    assert not single_statement.release(lease.grant, None, HISTORY)
    assert lock().token == successor.token


@pytest.mark.parametrize(
    ("code", "is_undone"),
    [
        ("40001", True),
        ("55P03", True),
        ("42P01", True),
        ("23505", True),
        ("22012", True),
        ("57014", False),
        ("57P01", False),
        ("53100", False),
        ("XX000", False),
    ],
)
def test_what_the_server_refuses_was_undone(code: str, is_undone: bool) -> None:
    assert was_undone(an_error(code, IntegrityError if code == "23505" else OperationalError)) is is_undone


def test_so_was_a_lease_that_the_server_cannot_add_to_an_instant() -> None:
    take().release()
    with pytest.raises(DataError) as caught:
        said(a_request(lease=timedelta.max))
    assert was_undone(caught.value)


def pooler_gives_up(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
    """The server has carried out the statement, but its connection to the pooler is lost. The pooler says so in its own
    words: many poolers know one code for everything."""
    answer = execute(sql, *others)
    if "WITH" in sql:
        raise an_error("XX000", InternalError)
    return answer


def test_the_error_of_a_pooler_leaves_it_in_doubt() -> None:
    start_run().finish(SUCCESS)
    with connection.execute_wrapper(pooler_gives_up):
        lease = start_run()
        assert (lease.fence, lease.token) == (nth_fence(2), lock().token)
        assert lease.finish(SUCCESS)
    assert is_free()
    assert [run.status for run in runs().all()] == ["successful", "successful"]


def test_an_error_of_the_driver_leaves_it_in_doubt() -> None:
    assert not was_undone(OperationalError("The connection was lost."))


# --- around it


def test_it_waits_no_longer_for_the_history_than_the_portable_path(elsewhere: Elsewhere) -> None:
    start_run().finish(SUCCESS)
    begun, end = Event(), Event()

    def lock_the_table() -> None:
        with connection.cursor() as cursor:
            cursor.execute("LOCK TABLE django_singlejob_jobrun IN ACCESS EXCLUSIVE MODE")

    other = elsewhere(holding(lock_the_table, begun, end))
    assert begun.wait(PATIENCE)
    with requests("jobrun") as found:
        lease = start_run()
    assert found == ["ONE"]  # then the grant without the history
    end.set()
    other.result()
    assert lease.release()


@pytest.mark.parametrize("options", [{"server_side_binding": True}, {"pool": {"min_size": 2, "max_size": 4}}])
def test_it_works_with_these_options(options: dict[str, Any]) -> None:
    if "pool" in options:
        pytest.importorskip("psycopg_pool")
    with connected_with(**options):
        start_run().finish(SUCCESS)
        with requests() as found:
            assert start_run().finish(FAILURE)
        assert found == ["ONE", "ONE"]
        if "pool" in options:
            connection.close_pool()  # type: ignore[attr-defined]  # PostgreSQL has it
    assert last_run().error == FAILURE.error
