"""The prose reads like English: no phrase that gives a translation away."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# It reads files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")

#: What to look for, and what to write instead.
PATTERNS = {
    r"\b[Ww]hoever\b": "'anyone who', or a noun: the caller, the holder, another server",
    r"(?:^|[;:] |(?<!\d)\. )Who\b(?![^.]*(?:\?|$))": "a noun: the caller, the holder, another server",
    r"(?<![Tt]here )\bis no (?!longer\b|more\b|such\b|other\b|later\b|earlier\b)": "'is not a'",
    r"\btold\b": "'reported', 'recorded' or 'passed', or name the one that says it",
    r"\bso (?:many|long)\b(?! as\b)": "name the number or the duration",
    r"\bmend(?:s|ed)?\b": "'fix'",
    r"\b(?:does|do) not take (?:this|these|any|such)\b": "'does not accept'",
    r"\bbelongs? into\b": "'belongs in'",
    r"\bleaves? \w+ away\b": "'leave out'",
    r"(?:^|[.;:] )(?:Is|Has|Are|Does) (?:it|the|a|an|there|that)\b[^.?]*,": "a condition begins with 'if' or 'when'",
}
FOLDERS = ["django_singlejob", "docs", "example_project", "tests", ".github"]
KINDS = (".py", ".md", ".html", ".js", ".css")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS),
    ]
)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that may hold prose, with their numbers.

    Of Python, these are the comments and the strings; of the tests, only the docstrings: other strings may be anything.
    """
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    is_test = path.is_relative_to(ROOT / "tests")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_data = is_test and not token.string.startswith(('"""', "#"))
        if token.type in (tokenize.COMMENT, tokenize.STRING) and not is_data:
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                yield number, line.strip("#\"' ")


ANY_PATTERN = re.compile("|".join(PATTERNS))


def oddities(path: Path) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line!r}: write {instead}"
        for number, line in prose(path)
        if ANY_PATTERN.search(line)
        for pattern, instead in PATTERNS.items()
        if re.search(pattern, line)
    ]


def test_no_phrase_gives_a_translation_away() -> None:
    found = [oddity for path in PAGES if path.name != "test_english.py" for oddity in oddities(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "Who asks for a lock meanwhile waits.",
        "It waits for whoever holds it.",
        "This is no queue.",
        "The process is told so.",
        "Is the row back, it is deleted.",
        "This belongs into another folder.",
    ],
)
def test_a_phrase_is_found(line: str) -> None:
    assert any(re.search(pattern, line) for pattern in PATTERNS)


@pytest.mark.parametrize(
    "line",
    [
        "There is no lock.",
        "It is no longer held.",
        "Who holds the lock?",
        "As long as it runs, it beats.",
        "Told twice, kept once.",
    ],
)
def test_plain_english_is_not(line: str) -> None:
    assert not any(re.search(pattern, line) for pattern in PATTERNS)
