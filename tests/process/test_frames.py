"""The innermost frame of the project's own code, of exceptions of all kinds."""

from __future__ import annotations

import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django
import pytest

import django_singlejob
from django_singlejob.locking.endings import ORIGIN_LENGTH, ending
from django_singlejob.process.frames import Frame, own_frame
from tests.contract.acts import MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = Path(django_singlejob.__file__).parent


def failure_of(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("It raised nothing.")


def recorded(failure: BaseException, package: str = "") -> str:
    return ending(failure, duration=MINUTE, acquire_duration=MINUTE, package=package).origin


def of(act: Callable[[], object]) -> Frame:
    """The frame that is recorded of what this raises."""
    frame = Frame.recorded(recorded(failure_of(act)))
    assert frame
    return frame


def through(*paths: str) -> BaseException:
    """An exception that came through functions in each of these files, the innermost last."""
    call: Any = partial(int, "x")
    for path in reversed(paths):
        found: dict[str, Any] = {"call": call}
        exec(compile("def work():\n    return call()\n", path, "exec"), found)
        call = found["work"]
    return failure_of(call)


def test_it_is_the_innermost_one_of_the_project() -> None:
    frame = own_frame(through("/srv/shop/jobs.py", "/srv/shop/mail.py", "/usr/lib/python3.12/smtplib.py"))
    assert frame == Frame("/srv/shop/mail.py", 2, "work", "")


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3.12/smtplib.py",
        "/usr/local/lib/python3.13t/threading.py",
        "/usr/lib64/python3.11/json/decoder.py",
        "/opt/pypy/lib/pypy3.10/json.py",
        "/usr/lib/python312.zip/json.py",
        r"C:\Python312\Lib\smtplib.py",
        "/Library/Frameworks/Python.framework/Versions/3.12/lib/python3.12/ssl.py",
        "/home/me/.local/share/uv/python/cpython-3.12/lib/python3.12/ssl.py",
        "/srv/shop/.venv/lib/python3.12/site-packages/requests/api.py",
        r"C:\shop\venv\Lib\site-packages\requests\api.py",
        "/usr/lib/python3/dist-packages/requests/api.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        str(OURS / "running" / "runner.py"),
        "/home/me/src/django-singlejob/django_singlejob/locking/lease.py",
        f"{Path(django.__file__).parent}/db/models/query.py",
        traceback.__file__,
    ],
)
def test_what_is_installed_is_not_the_projects(path: str) -> None:
    frame = own_frame(through("/srv/shop/jobs.py", path))
    assert frame
    assert frame.path == "/srv/shop/jobs.py"


@pytest.mark.parametrize(
    "path",
    [
        "/srv/shop/jobs.py",
        "shop/jobs.py",
        r"C:\shop\jobs.py",
        "/home/me/src/shop/src/shop/jobs.py",  # installed, but editable
        "/srv/django_singlejob/shop/jobs.py",
        "/srv/lib/shop/jobs.py",
        '/srv/a "quoted", line 3/jobs.py',
    ],
)
def test_everything_else_is(path: str) -> None:
    frame = own_frame(through(path))
    assert frame
    assert frame.path == path


def test_the_package_of_the_job_is_even_if_it_is_installed() -> None:
    for path in "/usr/lib/python3.12/site-packages/shop/jobs.py", "/venv/lib/python3.12/site-packages/shop.py":
        for package, expected in {"shop": path, "sho": __file__, "": __file__}.items():
            frame = own_frame(through(path), package)
            assert frame
            assert frame.path == expected


def test_it_has_the_text_of_the_line() -> None:
    def work() -> None:
        int("x")

    frame = of(work)
    assert (frame.path, frame.function, frame.source) == (__file__, "work", 'int("x")')


def test_of_a_chain_it_is_that_of_the_error_that_is_shown() -> None:
    def work() -> None:
        try:
            int("x")
        except ValueError as error:
            raise LookupError("no such customer") from error

    assert of(work).source.startswith("raise LookupError")


def test_of_a_group_it_is_that_of_the_group() -> None:
    def work() -> None:
        raise ExceptionGroup("several", [ValueError("a"), ExceptionGroup("more", [ValueError("several")])])

    assert of(work).source.startswith("raise ExceptionGroup")


def test_of_a_syntax_error_it_is_the_line_with_the_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def work(:\n")

    def work() -> None:
        compile(broken.read_text(), str(broken), "exec")

    assert of(work) == Frame(str(broken), 1, "", "def work(:")


def test_of_a_deep_recursion_too() -> None:
    def down() -> None:
        down()

    assert of(down).source == "down()"


@pytest.mark.parametrize("name", ["a\nb.py", "a\x1b[31mb.py", f"{'a' * 300}.py"])
def test_a_hostile_file_name_stays_on_its_line(name: str) -> None:
    frame = Frame.recorded(recorded(through(f"/srv/{name}")))
    assert frame
    assert frame.line == 2
    assert "\x1b" not in frame.path


@pytest.mark.parametrize(
    "text", ["", "shop", "a\nb\nc\nd", "a\n1\nc", "a\n1\nc\nd\ne", f"a\n{'9' * 5000}\nc\nd"], ids=range(6)
)
def test_what_was_written_by_hand_is_no_frame(text: str) -> None:
    assert Frame.recorded(text) is None


def test_what_is_recorded_has_a_limit() -> None:
    assert len(recorded(through(f"/srv/{'a' * 5000}.py"))) <= ORIGIN_LENGTH


def test_of_a_success_nothing_is_recorded() -> None:
    assert ending(None, duration=MINUTE, acquire_duration=MINUTE).origin == ""
