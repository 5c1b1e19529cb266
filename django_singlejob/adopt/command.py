"""What a line of a crontab begins, and what stands around it: ``cd``, ``flock``, ``timeout``, ``sleep``, ``| mail``."""

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from django_singlejob.adopt.found import Left
from django_singlejob.adopt.shell import (
    Redirection,
    Unbalanced,
    is_plain,
    parts,
    unquoted,
    without_comment,
    without_redirections,
    words,
)

_NOWHERE = "/dev/null"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# What only the server itself can need.
_OF_EACH_SERVER = re.compile(
    r"(?:^|[|&;(]|\bthen|\bsudo)\s*(?:/\S*/)?"
    r"(?:anacron|apt|apt-get|aptitude|certbot|chkrootkit|debian-sa1|dnf|docker (?:\w+ )?prune|e2scrub_all|fstrim"
    r"|journalctl|logrotate|mandb|ntpdate|reboot|rkhunter|run-parts|sa1|sa2|sessionclean|shutdown|sync|systemctl|tmpreaper|tmpwatch"
    r"|unattended-upgrades?|updatedb|yum)(?:\s|[;)]|$)"
)
_HOSTNAME = r"""["']?(?:\$\(hostname(?: -[sf])?\)|`hostname(?: -[sf])?`|\$\{?HOSTNAME\}?)["']?"""
_HOST_TEST = re.compile(
    rf"""(?:\[\[? |test )\s*(?:{_HOSTNAME}\s*={{1,2}}\s*(\S+)|(\S+)\s*={{1,2}}\s*{_HOSTNAME})(?:\s*\]\]?)?"""
)
_RANDOM_SLEEP = re.compile(
    r"""sleep\s+["']?(?:\$\(\(\s*\(?\s*\$?\{?RANDOM\}?\s*%\s*(\d+)\s*\)?(?:\s*\+\s*\d+)?\s*\)\)"""
    r"""|`?\$?\(?shuf -i ?\d+-(\d+) -n ?1\)?`?)["']?s?"""
)


@dataclass(frozen=True)
class Command:
    """What a line begins.

    Attributes:
        management: the words of a management command; empty if it is none.
        words: those of another command that needs no shell; empty if it does.
        line: what a shell has to run, if neither is there.
        directory: where it runs; empty if the line does not say.
        sources: what it reads before, such as ``source .env``.
        lock: the file of ``flock``; empty if there is none.
        wait: how long it waits for that, in seconds; ``inf`` if for ever.
        max_runtime: when ``timeout`` ends it, in seconds; ``None``: never.
        spread: how many seconds it sleeps at most, by chance.
        host: the server that it is for; empty if it is for all.
        notify: to whom a failure is mailed; empty if the line does not say.
        notes: what differs, for people.
    """

    management: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    line: str = ""
    directory: str = ""
    sources: tuple[str, ...] = ()
    lock: str = ""
    wait: float = 0.0
    max_runtime: float | None = None
    spread: int = 0
    host: str = ""
    notify: str = ""
    notes: tuple[str, ...] = field(default=())

    def noting(self, *notes: str, **changes: object) -> "Command":
        """The same with these notes and changes."""
        return replace(self, notes=(*self.notes, *notes), **changes)  # type: ignore[arg-type]


def understood(line: str, given: tuple[str, ...] = ()) -> Command:
    """What the line begins. ``given``: the lines that it reads. Raises ``Left`` if it should stay."""
    line = without_comment(line)
    if _OF_EACH_SERVER.search(line):
        raise Left("each server needs it")
    try:
        found, rest = _without_preludes(Command(), line)
        if given:
            return found.noting(line=_fed(given, rest))
        return _of_rest(found, rest)
    except Unbalanced as error:
        cut = "; a % without a backslash ends the command" if given else ""
        raise Left(f"it is not understood: {error}{cut}") from None


def _fed(given: tuple[str, ...], rest: str) -> str:
    # cron passes what follows a % to the command, and each further % begins a line.
    piece = f"{{ {rest}; }}" if len(parts(rest)) > 1 else rest
    return f"printf '%s\\n' {shlex.join(given)} | {piece}"


# --- before the command


def _without_preludes(found: Command, line: str) -> tuple[Command, str]:
    """What stands before the command with ``&&`` or ``;``, and the rest of the line."""
    while len(pieces := parts(line)) > 1 and pieces[1][0] in ("&&", ";"):
        changed = _prelude(found, pieces[0][1], [operator for operator, _ in pieces[1:]])
        if changed is None:
            break
        found = changed
        _, _, rest = line.partition(pieces[0][1])
        line = rest.partition(pieces[1][0])[2].strip()
    return found, line


def _prelude(found: Command, piece: str, operators: list[str]) -> Command | None:
    """``None`` if it is none. ``operators``: those that follow."""
    test = _HOST_TEST.fullmatch(piece)
    if test and is_plain(test[1] or test[2]) and {*operators} <= {"&&", "|"}:
        return replace(found, host=unquoted(test[1] or test[2]))
    if sleep := _RANDOM_SLEEP.fullmatch(piece):
        return replace(found, spread=found.spread + int(sleep[1] or sleep[2]))
    head, *rest = words(piece) or [""]
    are_apart = all(words(each)[1].startswith(("/", "~")) for each in found.sources)  # from where it is
    if head == "cd" and are_apart and len(rest) == 1 and is_plain(rest[0].replace("~", "")):
        return replace(found, directory=os.path.join(found.directory, unquoted(rest[0])))  # noqa: PTH118  (a text)
    if head in ("source", ".") and len(rest) == 1:
        return replace(found, sources=(*found.sources, piece))
    return None


# --- the command itself


def _of_rest(found: Command, rest: str) -> Command:
    pieces = parts(rest)
    if len(pieces) > 1 and pieces[-1][0] == "||" and (address := _mailed_to(pieces[-1][1])):
        found = found.noting("|| mail: a failure is mailed by notify, at once", notify=address)
        pieces, rest = pieces[:-1], rest[: rest.rindex("||")].strip()
    if len(pieces) > 1:
        return _for_a_shell(found, rest)
    return _single(found, rest)


def _mailed_to(piece: str) -> str:
    """The address, if this sends a mail; otherwise empty."""
    head, *rest = words(piece) or [""]
    plain = [unquoted(word) for word in rest if is_plain(word)]
    addresses = [word for word in plain if re.fullmatch(r"[\w.+-]+@[\w.-]+", word)]
    return addresses[-1] if addresses and _base(head) in ("mail", "mailx", "mutt", "sendmail") else ""


def _for_a_shell(found: Command, rest: str) -> Command:
    if rest.rstrip().endswith("&"):
        raise Left("it leaves a process in the background; start that by systemd, or by run_singleton --standby")
    return found.noting(line=rest)


def _single(found: Command, piece: str) -> Command:
    """One command, without operators."""
    given, redirections = without_redirections(words(piece))
    writes = any(each.target not in (_NOWHERE, "&1", "&2") for each in redirections)
    while given and (wrapper := _WRAPPERS.get(_base(given[0]))):
        is_shell = _base(given[0]) in _SHELLS
        if is_shell and writes:  # to a file whose path counts from here
            break
        try:
            found, given = wrapper(found, given)
        except _NoWrapper:
            break
        if is_shell:
            found, given = _of_rest(*_without_preludes(found, unquoted(given[0]))), []
            manage = ("python", "manage.py", *found.management)
            return _with_output(found, redirections, found.line or shlex.join(found.words or manage))
    if not given:
        raise Left("it has no command")
    return _with_output(_plain(found, given), redirections, " ".join(given))


def _base(word: str) -> str:
    return word.rpartition("/")[2]


def _plain(found: Command, given: list[str]) -> Command:
    if not all(map(is_plain, given)):
        return found.noting(line=" ".join(given))
    bare = [unquoted(word) for word in given]
    if management := _management(bare):
        name = management[0]
        if name == "singleton_worker":
            raise Left("it is the line for all jobs already")
        if name == "run_singleton":
            raise Left("it runs a job of django-singlejob already: give that job this schedule, and drop the line")
        if any(word.partition("=")[0] in ("--settings", "--pythonpath") for word in management):
            return found.noting(words=tuple(bare))  # of another project than the worker's
        others = [each for each in found.sources if not each.rstrip("\"'").endswith("bin/activate")]
        notes = [f"{each}: the worker's own environment holds, so start it with these variables" for each in others]
        return found.noting(*notes, management=management)
    if re.match(r"\w+=", bare[0]):
        bare.insert(0, "env")
    return found.noting(words=tuple(bare))


_RUNNERS = {("uv", "run"), ("poetry", "run"), ("pipenv", "run"), ("pdm", "run"), ("rye", "run"), ("hatch", "run")}


def _management(given: list[str]) -> tuple[str, ...]:
    """The words of a management command; empty if it is none."""
    rest = given[2:] if tuple(given[:2]) in _RUNNERS else given
    if rest and re.fullmatch(r"(?:.*/)?python[\d.]*", rest[0]):
        rest = rest[1:]
        while rest and re.fullmatch(r"-[uOBEsI]+|-W.+", rest[0]):
            rest = rest[1:]
        if rest[:2] == ["-m", "django"]:
            return tuple(rest[2:])
    if rest and _base(rest[0]) in ("manage.py", "django-admin", "django-admin.py"):
        return tuple(rest[1:])
    return ()


def _with_output(found: Command, redirections: list[Redirection], raw: str) -> Command:
    """The command with what becomes of its output. ``raw``: how a shell runs it."""
    if not redirections:
        return found
    files = [each for each in redirections if each.target not in (_NOWHERE, "&1", "&2")]
    if not files:
        is_silent = any(each.target == _NOWHERE and each.stream != "0" for each in redirections)
        return found.noting("> /dev/null: the output is kept with the run") if is_silent else found
    if found.management and all(each.operator == ">>" and is_plain(each.target) for each in files):
        note = f">> {unquoted(files[0].target)}: the output is kept with the run; OUTPUT_FILE appends it to files"
        return found.noting(note)
    texts = " ".join(each.text for each in redirections)
    piece = f"{{ {raw}; }}" if len(parts(raw)) > 1 else raw
    return replace(found, management=(), words=(), line=f"{piece} {texts}")


# --- what stands around it


def _flock(found: Command, given: list[str]) -> tuple[Command, list[str]]:
    rest, wait = given[1:], float("inf")
    while rest and rest[0].startswith("-") and rest[0] not in _SHELL_LINE:
        option = rest.pop(0)
        if re.fullmatch(r"-[a-z]*[su][a-z]*|--shared|--unlock", option):
            raise Left("its flock is shared, or is given up, which no lock of a job is")
        if re.fullmatch(r"-[a-z]*n[a-z]*|--nb|--nonblock", option):
            wait = 0.0
        elif match := re.fullmatch(r"(?:-[xe]*w|--(?:wait|timeout)=?)(\d[\d.]*)?", option):
            wait = _seconds(match[1] or (rest.pop(0) if rest else ""))
        elif option in ("-E", "--conflict-exit-code"):
            rest.pop(0)
    if len(rest) < 2 or rest[0].isdigit():
        raise Left("its flock locks a descriptor of the shell")
    file, *rest = rest
    return replace(found, lock=unquoted(file), wait=wait), [*_SHELL, *rest[1:]] if rest[0] in _SHELL_LINE else rest


def _seconds(text: str) -> float:
    if not re.fullmatch(r"\d+(?:\.\d+)?", text):
        raise Left(f"the time of its flock, {text!r}, is not understood")
    return float(text)


def _timeout(found: Command, given: list[str]) -> tuple[Command, list[str]]:
    rest = given[1:]
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-k", "-s", "--kill-after", "--signal") and rest:
            rest.pop(0)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", rest[0]) if rest else None
    if match is None:
        raise Left("the time of its timeout is not understood")
    return replace(found, max_runtime=float(match[1]) * _SECONDS[match[2]]), rest[1:]


def _dropped(note: str = "") -> Callable[[Command, list[str]], tuple[Command, list[str]]]:
    def drop(found: Command, given: list[str]) -> tuple[Command, list[str]]:
        if given[1:] and given[1].startswith("-"):
            raise _NoWrapper
        return (found.noting(note) if note else found), given[1:]

    return drop


def _shell(found: Command, given: list[str]) -> tuple[Command, list[str]]:
    """``sh -c LINE``; anything else is a command like another one."""
    options = given[1:-1]
    is_line = bool(options) and all(each in ("-l", "-c", "-lc") for each in options) and options[-1].endswith("c")
    if not is_line or not is_plain(given[-1]):
        raise _NoWrapper
    return found, given[-1:]


class _NoWrapper(Exception):
    """It is a command like another one."""


_SHELL, _SHELL_LINE = ["sh", "-c"], ("-c", "--command")
_SHELLS = {"sh", "bash", "dash", "zsh"}
_WRAPPERS: dict[str, Callable[[Command, list[str]], tuple[Command, list[str]]]] = {
    "flock": _flock,
    "timeout": _timeout,
    "chronic": _dropped("chronic: only failures are mailed anyway"),
    "cronic": _dropped("cronic: only failures are mailed anyway"),
    "nohup": _dropped(),
    "exec": _dropped(),
    "time": _dropped(),
    "run-one": _dropped("run-one: the lock of the job does that, on all servers"),
    "solo": _dropped("solo: the lock of the job does that, on all servers"),
    **dict.fromkeys(_SHELLS, _shell),
}
