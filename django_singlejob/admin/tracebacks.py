"""How a traceback looks: the package's own frames are folded, so that those of the project are seen at once."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from django_singlejob.admin.cells import preformatted
from django_singlejob.process.frames import is_ours

# In a group of exceptions, each line begins with a bar.
_FRAME = re.compile(r'((?:\s*\|)?\s*)File "(.*)", line \d+')


def traceback_panel(text: str) -> SafeString | str:
    """The traceback, in which each series of frames of this package is folded."""
    parts = [(is_own, [*some]) for is_own, some in groupby(_parts(text.split("\n")), key=lambda part: part[0])]
    if not any(is_own for is_own, _ in parts):
        return preformatted(text)
    shown = format_html_join("", "{}", ((_part(is_own, [lines for _, lines in some]),) for is_own, some in parts))
    return format_html('<div class="singlejob-traceback">{}</div>', shown)


def _part(is_own: bool, some: Sequence[Sequence[str]]) -> SafeString | str:
    text = preformatted("\n".join(line for lines in some for line in lines))
    if not is_own:
        return text
    words = ngettext("%d frame of django_singlejob", "%d frames of django_singlejob", len(some)) % len(some)
    return format_html("<details><summary>{}</summary>{}</details>", words, text)


def _parts(lines: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """Each frame, with the lines of code below it, and each other line; and whether it is a frame of this package."""
    part: list[str] = []
    is_own, inner = False, ""
    for line in lines:
        found = _FRAME.match(line)
        if part and not found and inner and line.startswith(inner):
            part.append(line)
            continue
        if part:
            yield is_own, part
        part, is_own, inner = [line], bool(found and is_ours(found[2])), f"{found[1]}  " if found else ""
    yield is_own, part
