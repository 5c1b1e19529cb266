"""The pages that a user reads, in the order of the navigation; and files that are made of all of them.

`python -m tests.pages` writes those into `docs/`, before the documentation is built: `everything.md` has all pages on
one, `llms.txt` lists them for language models (https://llmstxt.org), and `llms-full.txt` is `everything.md` as text.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.children import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
#: Not pages: they are made of the pages.
MADE = ["everything.md", "llms.txt", "llms-full.txt"]

LINK = re.compile(r"(\]\()([^)\s]+)\)")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


class Page(NamedTuple):
    #: A path in `docs/`.
    path: str
    #: The heading above it in the navigation; empty for the first pages.
    section: str
    title: str
    text: str

    @property
    def url(self) -> str:
        path = self.path.removesuffix(".md").removesuffix("index")
        return f"{PROJECT['site_url']}{path and path + '/'}"

    @property
    def summary(self) -> str:
        """Its first paragraph, on one line, without the links."""
        paragraph = self.text.split("\n\n")[1]
        return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))


def pages() -> list[Page]:
    return [page(path, section) for section, path in _paths(PROJECT["nav"])]


def page(path: str, section: str = "") -> Page:
    text = (DOCS / path).read_text()
    return Page(path, section, text.splitlines()[0].removeprefix("# "), text)


def _paths(entries: list[Any], section: str = "") -> Iterator[tuple[str, str]]:
    for entry in entries:
        [(title, rest)] = entry.items() if isinstance(entry, dict) else [("", entry)]
        if isinstance(rest, str):
            yield section, rest
        else:
            yield from _paths(rest, title)


def everything() -> str:
    return "# Everything on one page\n\n" + "\n".join(_within(each) for each in pages())


def _within(page: Page) -> str:
    """Its text for a page in the folder `docs/`: its headings are one level lower, and its links lead from there."""
    folder = posixpath.dirname(page.path)
    parts = FENCED.split(page.text)
    for number in range(0, len(parts), 2):
        prose = re.sub(r"^#", "##", parts[number], flags=re.MULTILINE)
        parts[number] = LINK.sub(lambda link: f"{link[1]}{_from_docs(link[2], folder, page.path)})", prose)
    return "".join(parts)


def _from_docs(target: str, folder: str, path: str) -> str:
    if target.startswith("#"):
        return path + target
    return target if "://" in target else posixpath.normpath(posixpath.join(folder, target))


def llms() -> str:
    lines = [f"# {PROJECT['site_name']}", "", f"> {PROJECT['site_description']}"]
    section = None
    for each in pages():
        if each.section != section:
            section = each.section
            lines += ["", f"## {section or 'Start'}", ""]
        lines.append(f"- [{each.title}]({each.url}): {each.summary}")
    lines += ["", "## Optional", "", f"- [Everything]({PROJECT['site_url']}llms-full.txt): all pages in one file"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (DOCS / "everything.md").write_text("---\nsearch:\n  exclude: true\n---\n\n" + everything())
    (DOCS / "llms.txt").write_text(llms())
    (DOCS / "llms-full.txt").write_text(everything())
