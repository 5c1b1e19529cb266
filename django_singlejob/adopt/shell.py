"""The words of a shell's command line, as far as it is plain: quotes, operators and redirections."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

# What a shell changes about a word, if it is not quoted.
_SPECIAL = re.compile(r"[*?\[\]{}~()<>|&;#!\n]")
_OPERATOR = re.compile(r"\|\||&&|\|&|\||;|&(?!>)")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>\||>|<<<|<<|<)(&\d|&-|.*)", re.DOTALL)


class Redirection(NamedTuple):
    """A redirection: of which stream (``"1"``, ``"2"``; ``"&"``: both; ``"0"``: what it reads), how, where to, and its
    words."""

    stream: str
    operator: str
    target: str
    text: str


class Unbalanced(ValueError):
    """A quote has no end."""


def parts(line: str) -> list[tuple[str, str]]:
    """The commands of the line, each with the operator before it (empty for the first). Raises ``Unbalanced``."""
    found, begin, operator = list[tuple[str, str]](), 0, ""
    for at, is_free in _characters(line):
        if is_free and at >= begin and (match := _OPERATOR.match(line, at)) and not _is_of_redirection(line, at):
            found.append((operator, line[begin:at].strip()))
            operator, begin = match[0], match.end()
    return [*found, (operator, line[begin:].strip())]


def _is_of_redirection(line: str, at: int) -> bool:
    return line[at] == "&" and line[max(at - 1, 0)] in "<>"


def without_comment(line: str) -> str:
    """The line up to a comment. Raises ``Unbalanced``."""
    if "#" not in line:
        return line
    for at, is_free in _characters(line):
        if is_free and line[at] == "#" and (at == 0 or line[at - 1].isspace() or line[at - 1] == ";"):
            return line[:at].strip()
    return line


def words(command: str) -> list[str]:
    """The words of a command, with their quotes. Raises ``Unbalanced``."""
    found, begin = list[str](), -1
    for at, is_free in _characters(command):
        is_space = is_free and command[at].isspace()
        if is_space and begin >= 0:
            found.append(command[begin:at])
            begin = -1
        elif not is_space and begin < 0:
            begin = at
    return [*found, command[begin:]] if begin >= 0 else found


def _characters(line: str) -> Iterator[tuple[int, bool]]:
    """The places of the characters, and whether each is outside of quotes and of what a shell would run or compute."""
    quote, depth, is_escaped = "", 0, False
    for at, char in enumerate(line):
        if is_escaped:
            is_escaped = False
            yield at, False
        elif char == "\\" and quote != "'":
            is_escaped = True
            yield at, False
        elif quote:
            quote = "" if char == quote else quote
            yield at, False
        elif char in "\"'`":
            quote = char
            yield at, False
        elif char == "(" or (depth and char == ")"):
            depth += 1 if char == "(" else -1
            yield at, False
        else:
            yield at, depth == 0
    if quote or depth or is_escaped:
        raise Unbalanced("a quote or a parenthesis has no end")


def is_plain(word: str) -> bool:
    """Whether a shell changes nothing about the word but its quotes."""
    bare = re.sub(r"'[^']*'", "", word)
    if "$" in bare or "`" in bare:
        return False
    return _SPECIAL.search(re.sub(r'"(?:\\.|[^"\\])*"|\\.', "", bare)) is None


def unquoted(word: str) -> str:
    """A plain word without its quotes."""
    return "".join(shlex.split(word))


def without_redirections(of: list[str]) -> tuple[list[str], list[Redirection]]:
    """The words of a command, and its redirections."""
    kept, found, rest = list[str](), list[Redirection](), list(of)
    while rest:
        word = rest.pop(0)
        match = _REDIRECTION.fullmatch(word)
        if match is None:
            kept.append(word)
            continue
        stream = match[1] or ("0" if match[2].startswith("<") else "1")
        target = match[3] or (rest.pop(0) if rest else "")
        found.append(Redirection(stream, match[2], target, word if match[3] else f"{word} {target}"))
    return kept, found
