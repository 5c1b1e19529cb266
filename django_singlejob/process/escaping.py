"""Escapes characters of a text: those that a terminal, a log or a table must not get as they are."""

from collections.abc import Callable, Iterable
from itertools import islice
from unicodedata import category

# Persian and the languages of India are not written without these two, which join letters or keep them apart.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"


# Of a value in a message, in characters, and of names in a list.
_LONGEST, _MOST_NAMES = 2_000, 10
# The length of the longest escape, in characters.
_LONGEST_ESCAPE = 10


def cut(text: str, length: int = _LONGEST) -> str:
    """Return ``text``, or its beginning and how many characters are left out."""
    return text if len(text) <= length else f"{text[:length]}... and {len(text) - length} more characters"


def listed(names: Iterable[object], between: str = ", ") -> str:
    """Return the names for a message: the first ones, and how many more there are. Empty if there are none."""
    rest = iter(names)
    first = [*map(str, islice(rest, _MOST_NAMES))]
    more = sum(1 for _ in rest)
    return between.join([*first, f"and {more} more"] if more else first)


def printable(text: object, length: int, *, keep: str = "") -> str:
    """Return ``text`` with every character escaped that a database rejects or that could forge a line: NUL, line ends,
    surrogates, and what a three-byte utf8 column cannot store. The text is cut to ``length``. Characters in ``keep``
    are not escaped."""
    # Cut before escaping too: a huge text is not worth escaping only to be cut.
    return _escaped(str(text)[:length], lambda each: each in keep or _fits_a_table(each))[:length]


def printable_end(text: str, length: int) -> str:
    """The same of the end of a text of several lines."""
    escaped = printable(text[-length:], length * _LONGEST_ESCAPE, keep="\n\t")
    return escaped[-length:] if length else ""


def shown(text: object, *, keep: str = "") -> str:
    """Return ``text`` for a terminal or a log, where it may neither act nor deceive: on one line, with every control
    character escaped, every mark that changes the direction of writing, and every character that is invisible. What
    people write, in whatever language, stays as it is, and so do characters in ``keep``."""
    words = rest = str(text)
    for each in keep:
        rest = rest.replace(each, "")  # to look at each character of a long text takes a hundred times as long
    return words if rest.isprintable() else _escaped(words, lambda each: each in keep or _is_ordinary(each))


def _fits_a_table(character: str) -> bool:
    return character.isprintable() and ord(character) <= 0xFFFF


def _is_ordinary(character: str) -> bool:
    # To Python, the only printable space is the one that everybody types. Others are French or Japanese.
    return character.isprintable() or character in _JOINERS or category(character) == "Zs"


def _escaped(text: str, is_kept: Callable[[str], bool]) -> str:
    return "".join(each if is_kept(each) else each.encode("unicode_escape").decode("ascii") for each in text)
