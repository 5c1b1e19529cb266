from __future__ import annotations

from typing import NoReturn, Self

import pytest
from hypothesis import given, strategies as st

from django_singlejob.process.escaping import cut, listed, printable, shown

anything = st.text(st.characters()) | st.binary() | st.integers() | st.none()


@given(anything, st.integers(0, 300))
def test_whatever_it_is_can_be_stored_and_printed(text: object, length: int) -> None:
    shown = printable(text, length)
    assert len(shown) <= length
    assert shown.isprintable()
    assert max(map(ord, shown), default=0) <= 0xFFFF
    assert shown.encode().decode() == shown


@given(st.text(st.characters(max_codepoint=0xFFFF, categories=["L", "N", "P", "S"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert printable(text, len(text)) == text


def test_nothing_forges_a_line_or_a_page() -> None:
    assert printable("web\0-1\r\nERROR all is lost\x1b[31m", 100) == r"web\x00-1\r\nERROR all is lost\x1b[31m"
    assert printable("\ud800 \N{RIGHT-TO-LEFT OVERRIDE} \N{PILE OF POO}", 100) == r"\ud800 \u202e \U0001f4a9"


def test_what_is_to_be_kept_is_kept() -> None:
    assert printable("two\nlines\t", 100, keep="\n") == "two\nlines\\t"


class Huge(str):
    """A text that is too long to look at each of its characters."""

    __slots__ = ()

    def __str__(self) -> Self:
        return self

    def __iter__(self) -> NoReturn:
        pytest.fail("It is read to its end.")


def test_it_is_cut_before_it_costs_time() -> None:
    assert printable(Huge("\0" * 100), 10) == r"\x00\x00\x"


# --- for a terminal or a log

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))
INVISIBLE = "\u00ad\u200b\u2028\u2029\u2060\ufeff\ud800\udfff\U000e0001\U000e0041"


@pytest.mark.parametrize("character", CONTROLS + BIDI + INVISIBLE, ids=lambda character: f"{ord(character):x}")
def test_nothing_acts_on_a_terminal_or_deceives_a_reader(character: str) -> None:
    escape = shown(f"a{character}b")
    assert character not in escape
    assert (escape[:2], escape[-1]) == ("a\\", "b")
    assert escape.isascii()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "web-1",
            "déjà vu\N{NO-BREAK SPACE}!",
            "Привет",
            "夜間\N{IDEOGRAPHIC SPACE}処理",
            "שלום",
            "مرحبا",
            "नमस्ते",
        ),
        *(
            "می\N{ZERO WIDTH NON-JOINER}خواهم",
            "e\N{COMBINING ACUTE ACCENT}",
            "\N{PILE OF POO}",
            "𠮷野家",
            "👩\N{ZERO WIDTH JOINER}💻",
        ),
    ],
)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert shown(text) == text


@given(st.text(st.characters()))
def test_whatever_it_is_it_is_shown_on_one_line(text: str) -> None:
    assert shown(text).splitlines() in ([], [shown(text)])
    assert shown(text).encode().decode() == shown(shown(text))


def test_lines_are_kept_where_there_may_be_several() -> None:
    assert shown("one\ntwo\r\n", keep="\n") == "one\ntwo\\r\n"


def test_of_a_long_text_it_is_said_how_much_is_left_out() -> None:
    assert cut("x" * 2000) == "x" * 2000
    assert cut("x" * 99_000) == f"{'x' * 2000}... and 97000 more characters"


def test_of_many_names_some_are_listed_and_the_others_counted() -> None:
    assert listed([]) == ""
    assert listed("abcdefghij") == "a, b, c, d, e, f, g, h, i, j"
    assert listed(iter("abcdefghijkl"), "; ") == "a; b; c; d; e; f; g; h; i; j; and 2 more"
