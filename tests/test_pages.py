"""The files that are made of all pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.pages import DOCS, LINK, PROJECT, everything, llms, pages

if TYPE_CHECKING:
    from pathlib import Path

# They are made of files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")


def test_one_page_has_the_text_of_all() -> None:
    words = everything().partition("\n")[2].split()
    assert len(words) == sum(len(each.text.split()) for each in pages())


def test_its_links_lead_somewhere() -> None:
    for _, target in LINK.findall(everything()):
        assert "://" in target or (DOCS / target.partition("#")[0]).is_file(), target


def test_a_list_has_each_page_with_its_first_paragraph() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", llms(), re.MULTILINE)
    assert [title for title, _, _ in listed] == [*(each.title for each in pages()), "Everything"]
    assert all(url.startswith(PROJECT["site_url"]) for _, url, _ in listed)
    assert not [summary for _, _, summary in listed if summary.startswith(("#", "|", "```"))]


def test_a_page_for_contributors_is_neither_in_it_nor_found_by_a_search() -> None:
    for path in DOCS.glob("contributors/*.md"):
        assert f"contributors/{path.name}" not in [each.path for each in pages()]
        assert path.read_text().startswith("---\nsearch:\n  exclude: true\n---\n\n# "), path


@pytest.mark.parametrize("path", [*DOCS.rglob("*.md")], ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_begins_with_what_it_answers(path: Path) -> None:
    first = re.sub(r"\A---\n.*?\n---\n+", "", path.read_text(), flags=re.DOTALL).split("\n\n")[1]
    assert not first.startswith(("#", "|", "```", "* ")), first
    assert len(re.sub(r"\]\([^)]*\)", "", first).split()) <= 60, first


def test_what_a_user_reads_is_short() -> None:
    """In words, of which the lines of tables are none. If this fails, see whether something can go."""
    assert sum(len(re.findall(r"\S*\w\S*", each.text)) for each in pages()) <= 23_381
