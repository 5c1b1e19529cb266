"""The snippets of the pages that a user follows: the README, the tutorial and the recipes.

A test that runs one names it, as in `snippet("recipes/jobs.md", "Spread jobs out")`, with constants only: so
tests/test_docs.py finds the snippets that no test runs.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent
from typing import TYPE_CHECKING

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = ROOT / "docs"
PAGES = [
    "README.md",
    "tutorial.md",
    *(f"coming-from/{path.name}" for path in sorted((DOCS / "coming-from").glob("*.md"))),
    *(f"recipes/{path.name}" for path in sorted((DOCS / "recipes").glob("*.md"))),
]

#: The page, the nearest heading above, the language, and which of that language under that heading, from 1.
Key = tuple[str, str, str, int]


def snippet(page: str, title: str, language: str = "python", number: int = 1) -> str:
    """The text of this snippet. The page is a path in `docs/`, or `README.md`."""
    return snippets(page)[page, title, language, number]


def snippets(page: str) -> dict[Key, str]:
    found: dict[Key, str] = {}
    text = ((ROOT if page == "README.md" else DOCS) / page).read_text()
    title = ""
    for heading, _, language, body in re.findall(
        r"^#+ ([^\n]+)$|^( *)```(\w+)[^\n]*\n(.*?)^\2```$", text, re.DOTALL | re.MULTILINE
    ):
        if heading:
            title = heading.replace("`", "")
            continue
        number = 1 + sum(key[1:3] == (title, language) for key in found)
        found[page, title, language, number] = dedent(body)
    return found


def run_by(path: Path) -> Iterator[Key]:
    """The snippets that a test module names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "snippet":
            given = dict(zip(("page", "title", "language", "number"), map(ast.literal_eval, node.args), strict=False))
            given |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
            yield given["page"], given["title"], given.get("language", "python"), given.get("number", 1)
