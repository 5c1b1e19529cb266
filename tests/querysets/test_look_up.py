"""One read shows what two would."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections

from django_singlejob.conf import ZERO
from django_singlejob.exceptions import UnreadableRow
from django_singlejob.fields import LAST
from django_singlejob.querysets import looks
from django_singlejob.querysets.jobs import gates
from django_singlejob.querysets.locks import locks
from django_singlejob.querysets.looks import Seen, look
from tests.contract.acts import closing, expire, gate, lock, start_run, take
from tests.impossible import spoil

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model

pytest_plugins = "tests.fixtures"
pytestmark = [pytest.mark.usefixtures("fresh_process"), pytest.mark.django_db]

MINUTE = timedelta(minutes=1)


def nothing() -> None: ...


def a_lock_without_a_gate() -> None:
    take()
    gates()._raw_delete("default")


def a_gate_without_a_lock() -> None:
    start_run().release()


def a_stale_lock() -> None:
    start_run()
    expire()


def a_lock_with_another_gate() -> None:
    start_run("orders", name="nightly")


ROWS: list[Callable[[], None]] = [
    nothing,
    a_lock_without_a_gate,
    a_gate_without_a_lock,
    a_stale_lock,
    a_lock_with_another_gate,
]


@pytest.mark.parametrize("own_name", ["nightly", "orders"])
@pytest.mark.parametrize("min_interval", [ZERO, MINUTE])
@pytest.mark.parametrize("arrange", ROWS)
def test_it_sees_what_each_look_sees(arrange: Callable[[], None], own_name: str, min_interval: timedelta) -> None:
    arrange()
    seen = look("nightly", own_name, min_interval)
    apart = Seen(locks().look_up("nightly"), gates().look_up({"nightly", own_name}, min_interval), 0)
    assert facts(seen.lock) == facts(apart.lock)
    assert {name: facts(gate) for name, gate in seen.gates.items()} == {
        name: facts(gate) for name, gate in apart.gates.items()
    }


def facts(row: Model | None) -> dict[str, Any] | None:
    if row is None:
        return None
    values = {name: value for name, value in vars(row).items() if name not in ("_state", "now")}
    return {**values, "kinds": {name: type(value) for name, value in values.items()}, "now": row.now.tzinfo}  # type: ignore[attr-defined]


@pytest.mark.on_database("sqlite")
@pytest.mark.parametrize(("read", "column", "table"), [(lock, "pid", "joblock"), (gate, "fence", "jobstatus")])
def test_it_says_which_row_cannot_be_read(read: Callable[[], Model], column: str, table: str) -> None:
    take()
    assert spoil(read(), column, "nonsense")
    with pytest.raises(UnreadableRow, match=rf"^The row 'nightly' of the table django_singlejob_{table} cannot be "):
        look("nightly", "nightly", ZERO)


@pytest.mark.on_database("postgresql")
def test_what_python_cannot_hold_saturates() -> None:
    take()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_singlejob_joblock SET acquired_at = 'infinity'")
    seen = look("nightly", "nightly", ZERO)
    assert seen.lock
    assert seen.lock.acquired_at == LAST
    assert seen.gates["nightly"].name == "nightly"


@pytest.mark.django_db(transaction=True, available_apps=["django_singlejob"])
def test_it_keeps_no_connection_of_a_thread_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_known", {})

    def look_first() -> weakref.ref[Any]:
        look("nightly", "nightly", ZERO)
        return weakref.ref(connections["default"])

    with ThreadPoolExecutor() as pool:
        seen = pool.submit(closing, look_first).result()
    gc.collect()
    assert seen() is None
    take()
    assert look("nightly", "nightly", ZERO).lock == lock()
