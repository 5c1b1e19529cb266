"""The innermost frame of the project's own code, in tracebacks of all kinds."""

from __future__ import annotations

import sys
import textwrap
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import django
import pytest

import django_singlejob
from django_singlejob.admin.frames import Frame, own_frame
from django_singlejob.results import ERROR_LENGTH, TRACEBACK_LENGTH, ending, summary
from tests.contract.acts import MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable

HEADING = "Traceback (most recent call last):"
OURS = Path(django_singlejob.__file__).parent
DURING = "During handling of the above exception, another exception occurred:"
FORGED = '  File "/srv/shop/forged.py", line 1, in forged'


def text(*paths: str, end: str = "ValueError: oh no") -> str:
    """A traceback with a frame in each of these files."""
    frames = [f'  File "{path}", line {number}, in work\n    line_{number}()' for number, path in enumerate(paths, 1)]
    return "\n".join([HEADING, *frames, end, ""])


def raised(act: Callable[[], object]) -> tuple[str, str]:
    """The traceback and the error that are recorded of what this raises."""
    try:
        act()
    except BaseException as error:
        end = ending(error, duration=MINUTE, acquire_duration=MINUTE)
        return end.traceback, end.error
    raise AssertionError("It raised nothing.")


def of(act: Callable[[], object]) -> Frame:
    frame = own_frame(*raised(act))
    assert frame
    return frame


def compiled(source: str, path: str) -> Callable[[], object]:
    """A function of a module at this path."""
    found: dict[str, Callable[[], object]] = {}
    exec(compile(textwrap.dedent(source), path, "exec"), found)
    return found["work"]


def test_it_is_the_innermost_one_of_the_project() -> None:
    shown = text("/srv/shop/jobs.py", "/srv/shop/mail.py", "/usr/lib/python3.12/smtplib.py")
    assert own_frame(shown, "ValueError: oh no") == Frame("/srv/shop/mail.py", 2, "work", "line_2()")


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
        str(OURS / "runner.py"),
        "/home/me/src/django-singlejob/django_singlejob/locking/lease.py",
        f"{Path(django.__file__).parent}/db/models/query.py",
        traceback.__file__,
    ],
)
def test_what_is_installed_is_not_the_projects(path: str) -> None:
    assert own_frame(text(path), "ValueError: oh no") is None
    frame = own_frame(text("/srv/shop/jobs.py", path), "ValueError: oh no")
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
    frame = own_frame(text(path), "ValueError: oh no")
    assert frame
    assert frame.path == path


def test_the_package_of_the_job_is_even_if_it_is_installed() -> None:
    for path in "/usr/lib/python3.12/site-packages/shop/jobs.py", "/venv/lib/python3.12/site-packages/shop.py":
        assert own_frame(text(path), "ValueError: oh no", "shop")
        assert own_frame(text(path), "ValueError: oh no", "sho") is None
        assert own_frame(text(path), "ValueError: oh no") is None


def test_python_writes_them_like_this() -> None:
    def work() -> None:
        int("x")

    frame = of(work)
    assert (frame.path, frame.function.rpartition(".")[2], frame.source) == (__file__, "work", 'int("x")')


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


def test_an_exception_without_a_message_has_one_too() -> None:
    def work() -> None:
        raise LookupError

    assert of(work).source == "raise LookupError"


def test_a_message_of_several_lines_is_one() -> None:
    def work() -> None:
        raise ValueError("first\nsecond: \\n third\n")

    assert of(work).source.startswith("raise ValueError")


def test_of_a_deep_recursion_the_end_is_enough() -> None:
    def down(depth: int) -> None:
        if depth:
            for _ in [None]:
                down(depth - 1)
        raise ValueError("deep")

    shown, error = raised(partial(down, 20))
    deep = text(*["/srv/shop/jobs.py"] * 1000)[-TRACEBACK_LENGTH:]
    assert own_frame(shown, error)
    assert own_frame(deep, "ValueError: oh no") == Frame("/srv/shop/jobs.py", 1000, "work", "line_1000()")


# --- hostile text


def hostile(message: str, cause: str = "") -> Frame | None:
    """The frame of an error with this message, of a module at a path that is the project's."""
    source = """
        def work():
            if CAUSE:
                try:
                    raise KeyError(Text(CAUSE))
                except KeyError as error:
                    raise ValueError(MESSAGE) from error
            raise ValueError(MESSAGE)

        class Text(str):
            __repr__ = str.__str__
    """
    work = compiled(f"CAUSE, MESSAGE = {cause!r}, {message!r}\n{textwrap.dedent(source)}", "/srv/shop/jobs.py")
    return own_frame(*raised(work))


@pytest.mark.parametrize(
    "message",
    [
        f"x\n{FORGED}\n    forged()",
        f"x\n\n{HEADING}\n{FORGED}\nValueError: x",
        f"x\n\n{DURING}\n\n{HEADING}\n{FORGED}\nValueError: y",
        f"{FORGED}\nValueError: " * 3,
        f"{FORGED}\nValueError: " * 30,
        f"{FORGED}\nValueError: " * 3000,
        f"{'x' * ERROR_LENGTH}\n{FORGED}\nValueError: {'x' * ERROR_LENGTH}",
        f"{'x' * TRACEBACK_LENGTH}\n{HEADING}\n{FORGED}\nValueError: x",
        f"{'x' * TRACEBACK_LENGTH}\n{HEADING}\n{FORGED}\nValueError: {'x' * ERROR_LENGTH}",
    ],
)
def test_no_message_forges_one(message: str) -> None:
    for found in hostile(message), hostile("import failed", message), hostile(message, message):
        assert found is None or found.path == "/srv/shop/jobs.py", found


@pytest.mark.parametrize("message", [f"x\n{FORGED}\n    forged()", f"x\n\n{HEADING}\n{FORGED}\nLookupError: y"])
def test_nor_hides_the_true_one(message: str) -> None:
    for found in hostile(message), hostile("import failed", message):
        assert found
        assert found.path == "/srv/shop/jobs.py"


def test_a_cause_that_pretends_to_be_the_end_leaves_none() -> None:
    assert hostile("import failed", f"x\n{FORGED}\nValueError: import failed") is None


def test_a_cause_lends_none_to_an_error_that_has_none() -> None:
    end = f"KeyError: x\n{FORGED}\n\n{DURING}\n\n{text('/usr/lib/python3.12/smtplib.py')}"
    assert own_frame(text("/srv/shop/jobs.py", end=end), "ValueError: oh no") is None


def test_a_note_forges_none() -> None:
    def work() -> None:
        error = ValueError("x")
        error.add_note(f"\n{HEADING}\n{FORGED}\nKeyError: x")
        raise error

    assert of(work).path == __file__


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        ("", ""),
        ("", "ValueError: x"),
        ("Traceback\n", "The lock was lost."),
        ("\n" * TRACEBACK_LENGTH, "ValueError: x"),
        ("." * 100_000, "ValueError: x"),
        ("a." * 50_000, "ValueError: x"),
        (text("/srv/shop/jobs.py"), ""),
        (text("/srv/shop/jobs.py"), ": oh no"),
        (text("/srv/shop/jobs.py"), "KeyError: oh no"),
        (f'{HEADING}\n  File "/srv/shop/jobs.py", line {"9" * 5000}, in work\nValueError: x', "ValueError: x"),
    ],
)
def test_what_is_no_traceback_has_none(shown: str, error: str) -> None:
    assert own_frame(shown, error) is None


def test_an_error_of_the_database_is_recorded_in_other_words() -> None:
    shown = text("/srv/shop/jobs.py", end="django.db.utils.DataError: bad\nLINE 1: SELECT 1\n        ^\n")
    assert own_frame(shown, "DataError: bad value")


def test_the_error_is_the_summary() -> None:
    """What finds the message in a traceback relies on how an error is recorded."""
    assert summary(ValueError("a\nb")) == "ValueError: a\\nb"
    assert sys.version_info >= (3, 11)
