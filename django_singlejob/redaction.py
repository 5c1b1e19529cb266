"""Masks in a command line what looks like a secret.

It does its best, and no more: a secret that looks like any other word is not recognized. Each step takes time in
proportion to the length of the text, and only the beginning of a long command line is read.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePath
from typing import cast
from urllib.parse import unquote

from django.utils.functional import SimpleLazyObject

MASK = "***"
# What is stored is much shorter, but a mask makes a text shorter too.
LONGEST = 4_000


def _lazily(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """The pattern, compiled when it is first used. Every process that imports the jobs imports this too, and most have
    nothing to mask."""
    return cast("re.Pattern[str]", SimpleLazyObject(partial(re.compile, pattern, flags)))


# --- which names are those of secrets

_SECRETIVE = _lazily(
    r"passw|passphrase|passcode|secret|credential|authoriz|api_?key|access_?key|private_?key|token(?!i[sz])|bearer|cookie"
    r"|signature|jwt|.pass$|[._-]pass[._-]"
)
_SECRETIVE_PARTS = {
    *("pass", "passin", "passout", "pwd", "pw", "auth", "key", "keys", "sig", "sid", "session", "otp", "pin", "cred"),
    *("creds", "salt", "sas", "psk", "requirepass", "masterauth"),
}
_ORDINARY_NAMES = {"bypass", "compass", "PWD", "OLDPWD"}
# ``--no-password`` and ``--password-stdin`` have no value, and ``--max-tokens`` and ``--public-key`` no secret one.
_ORDINARY_PARTS = {
    *("no", "ask", "stdin", "prompt", "without", "max", "ttl", "count", "length", "limit", "timeout", "expiry", "size"),
    *("public", "pub", "primary", "foreign", "sort", "partition", "cache", "group", "policy"),
}
_PART = _lazily(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ORDINARY_VALUE = _lazily(r"(?i)true|false|none|null|yes|no|on|off|auto|\d{1,3}(?:,\d{1,3})?")


def _is_secretive(name: str) -> bool:
    """Whether this is what people call a secret: ``PGPASSWORD``, ``X-Api-Key``, ``clientSecret``."""
    name = name.strip("-")
    parts = {part.lower() for part in _PART.findall(name)}
    if name in _ORDINARY_NAMES or parts & _ORDINARY_PARTS:
        return False
    return bool(parts & _SECRETIVE_PARTS or _SECRETIVE.search(name.lower().replace("-", "_")))


# --- which options have a secret for a value, by program

_MYSQL = ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mysqlcheck", "mariadb", "mariadb-dump", "mariadb-admin")
_SECRET_LETTERS = {
    **dict.fromkeys((*_MYSQL, "sshpass", "7z", "7za", "mongo", "mongosh", "mongodump", "twine"), "p"),
    **dict.fromkeys(("redis-cli", "valkey-cli", "keydb-cli"), "a"),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami"), "w"),
    **dict.fromkeys(("sqlcmd", "bcp", "tsql", "zip", "unzip", "ipmitool"), "P"),
    **dict.fromkeys(("lftp", "ncftpget", "ncftpput"), "u"),
    **dict.fromkeys(("snmpget", "snmpwalk", "snmpset"), "cAX"),
    "smbclient": "U",
    "openssl": "k",
}
# To these, -p is a port, a path, a project and so on, and -u a user or a number.
_PLAIN = {
    *("apt", "apt-get", "bash", "cargo", "celery", "chown", "cp", "docker", "docker-compose", "find", "flock", "git"),
    *("gosu", "gunicorn", "install", "journalctl", "kill", "kubectl", "less", "lsof", "mkdir", "mv", "nc", "netstat"),
    *("nmap", "patch", "perl", "pg_basebackup", "pg_dump", "pg_dumpall", "pg_isready", "pg_restore", "pgrep", "ping"),
    *("pkill", "podman", "ps", "psql", "pytest", "python", "python3", "read", "rsync", "runuser", "scp", "screen"),
    *(
        "ssh",
        "ssh-keygen",
        "sudo",
        "systemctl",
        "systemd-run",
        "tar",
        "taskset",
        "tee",
        "time",
        "top",
        "touch",
        "unzip",
    ),
    *("uwsgi", "vacuumdb", "createdb", "dropdb", "redis-cli", "zip"),
}
# The options of others that begin with -p, such as those of ffmpeg or java.
_PLAIN_OPTIONS = {
    *("-package", "-packages", "-page", "-pages", "-parallel", "-param", "-params", "-patch"),
    *("-path", "-pattern", "-period", "-perm", "-pid", "-ping", "-pipe", "-pix_fmt", "-pkg"),
    *("-plan", "-platform", "-plugin", "-plugins", "-pool", "-port", "-position", "-precision"),
    *("-prefix", "-preset", "-pretty", "-print", "-print0", "-printf", "-priority", "-process"),
    *("-prof", "-profile", "-profiles", "-prog", "-progress", "-project", "-projects", "-prompt"),
    *("-properties", "-props", "-proto", "-protocol", "-provider", "-proxy", "-prune", "-pull"),
    *("-purge", "-push", "-put"),
}
_USER_OPTIONS = {"-u", "-U", "-a", "--user", "--proxy-user", "--userpwd", "--login"}
_ADMINS_OF_MYSQL = ("mysqladmin", "mariadb-admin")
_WORDS_BEFORE_A_SECRET = {"AUTH", "aws_secret_access_key", "aws_session_token", "requirepass", "masterauth"}

# --- what shows by itself that it is a secret

_TOKEN = _lazily(
    r"(?<![\w-])(?:"
    r"(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}|eyJ[\w-]{5,}(?:\.[\w-]*)*|gh[pousr]_\w{10,}|github_pat_\w{10,}"
    r"|glpat-[\w-]{10,}|xox[a-z]-[\w-]{8,}|(?:sk|pk|rk)[-_][\w-]{12,}|whsec_\w+|SG\.[\w.-]{16,}|AIza[\w-]{20,}"
    r"|ya29\.[\w.-]+|npm_\w{20,}|pypi-[\w-]{16,}|hf_\w{20,}|dop_v1_\w{20,}|hvs\.[\w-]{10,}|\d{8,10}:[\w-]{30,}"
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY-----.*?(?:-----END[^-]{0,40}-----|\Z)"
    r")|(?<=hooks\.slack\.com/services/)[\w/]+",
    re.DOTALL,
)
_RANDOM = _lazily(r"(?<![\w/+.-])[A-Za-z0-9_+][A-Za-z0-9_+/-]{31,}={0,2}(?![\w.])")
_SQL_PASSWORD = _lazily(r"((?i:\bpassword)\s{1,9})(?:'[^']*+(?:'|\Z))+")
_RUN = _lazily(r"[^\s'\"]+")
_PARAMETER = _lazily(r"(?<=[?&;#])([\w.%\[\]-]{1,64})=([^&;\s#'\"]+)")
_JSON_KEY = _lazily(r"""(?<!\\)(\\*["'])([\w. -]{1,64})\1\s*[:=]>?\s*""")
_JSON_VALUE = _lazily(
    r"""\\+["'].*?(?:\\++["']|\Z)|"(?:[^"\\]|\\.?)*+(?:"|\Z)|'[^']*+(?:'|\Z)|[\[{].*?(?:[\]}]|\Z)|[^\s,}\]]*""",
    re.DOTALL,
)


def redact(arguments: Sequence[str]) -> str:
    """The whole command line, with everything masked that looks like a secret, also inside a quoted shell script:
    ``--password x``, ``TOKEN=x``, ``user:pw@host``."""
    return _Line().of(_bounded(arguments))


def _bounded(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments up to the bound. The last word of one that was cut is left out: of a part of a secret, it is even
    harder to say that it is one."""
    left = LONGEST
    for argument in arguments:
        if len(argument) > left:
            yield f"{argument[:left].rpartition(' ')[0]}{MASK}"
            return
        yield argument
        left -= len(argument) + 1


class _Line:
    """A command line, or a text within one, read word by word."""

    def __init__(self, *, is_decoded: bool = False) -> None:
        self._is_decoded = is_decoded
        # The program that was named last, of those whose options are known.
        self._program = ""
        # The rest of this text is a secret, or its next word is.
        self._is_rest_hidden = False
        self._is_next_hidden = False
        self._last = ""

    def of(self, arguments: Iterator[str]) -> str:
        return " ".join(map(self._argument, arguments))

    def _argument(self, argument: str) -> str:
        if self._is_next_hidden:
            self._is_next_hidden = False
            return MASK
        if not any(map(str.isspace, argument)):
            return self.text(argument)
        masked = self._part(argument)
        self._last = argument
        return masked

    def _part(self, text: str) -> str:
        """A text with spaces within this one: a script of its own, or one value with its name."""
        is_script = _BEFORE_A_SCRIPT.fullmatch(self._last) is not None
        masked = "" if is_script else self._option(text) or _assignment(text)
        return masked or _Line(is_decoded=self._is_decoded).text(text)

    def text(self, text: str) -> str:
        text = _SQL_PASSWORD.sub(rf"\1{MASK}", text)
        plain = _RUN.sub(_run, _without_pairs_of_json(_TOKEN.sub(MASK, _RANDOM.sub(_random, text))))
        return _WORD.sub(self._word, plain)

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        if self._is_rest_hidden:
            return self._hidden(word)
        if self._is_next_hidden:
            self._is_next_hidden = False
            return MASK
        masked = self._option(word) or self._user_of_option(word) or self._value(word)
        self._note(word)
        return MASK if not self._is_decoded and _is_secret_if_decoded(masked) else masked

    def _hidden(self, word: str) -> str:
        """A word of a header's value: all of it is secret, except for the scheme after ``Authorization:``."""
        is_scheme = self._last.endswith(":") and _SCHEME.fullmatch(word)
        self._last = word
        return word if is_scheme else MASK

    def _note(self, word: str) -> None:
        """What a word says about the next one."""
        name = PurePath(word.strip("'\"")).name
        if name in _SECRET_LETTERS or name in _PLAIN or name == "login":
            self._program = name
        if word in ("=", "=>") and _is_secretive(self._last):
            self._is_next_hidden = True
        is_identified = word.upper() == "BY" and self._last.upper() == "IDENTIFIED"
        is_administered = word == "password" and self._program in _ADMINS_OF_MYSQL
        if is_administered or is_identified or word in _WORDS_BEFORE_A_SECRET or word.endswith("_authToken"):
            self._is_next_hidden = True
        self._last = word

    def _option(self, word: str) -> str:
        """The option, masked. Empty if there is nothing to mask in this word."""
        if not word.startswith("-") or len(word) < 2:
            return ""
        name, equals, value = word.partition("=")
        if _OPTION.fullmatch(name) and _is_secretive(name) and not (value and _ORDINARY_VALUE.fullmatch(value)):
            self._is_next_hidden = not equals
            return f"{name}={MASK}" if equals else word
        return self._short(word) or self._user(name, value)

    def _short(self, word: str) -> str:
        letter, value = word[1], word[2:]
        if letter in _SECRET_LETTERS.get(self._program, "" if self._program in _PLAIN else "p"):
            if self._program not in _SECRET_LETTERS and word in _PLAIN_OPTIONS:
                return ""
            self._is_next_hidden = not value
            return word[:2] + (MASK if value else "")
        return ""

    def _user(self, name: str, value: str) -> str:
        """``-u user:password``, which is not what it means to those that have users and groups."""
        if self._program in _PLAIN:
            return ""
        if name in _USER_OPTIONS:
            masked = _of_user(value)
            return f"{name}={masked}" if masked else ""
        masked = _of_user(name[2:]) if name[:2] in ("-u", "-U") else ""
        return f"{name[:2]}{masked}" if masked else ""

    def _user_of_option(self, word: str) -> str:
        """The same after an option of its own. Empty if there is nothing to mask in this word."""
        return _of_user(word) if self._last in _USER_OPTIONS and self._program not in _PLAIN else ""

    def _value(self, word: str) -> str:
        quoted = _QUOTED.sub(self._quoted, word)
        if quoted != word and word.startswith(("'", '"')):
            return quoted
        return self._pair(word) or quoted

    def _pair(self, word: str) -> str:
        """``KEY=value``, ``Key:value``, masked. Empty if there is no such pair."""
        for found in _KEY.finditer(word):
            if _is_secretive(found[1]):
                value = word[found.end() :].strip("'\"")
                if not value:
                    self._is_rest_hidden = found[2] == ":"
                    self._is_next_hidden = not self._is_rest_hidden
                    return word
                self._is_next_hidden = _SCHEME.fullmatch(value) is not None
                return "" if _ORDINARY_VALUE.fullmatch(value) else word[: found.end()] + MASK
        return ""

    def _quoted(self, found: re.Match[str]) -> str:
        return f"{found[1]}{self._part(found[2])}{found[3]}" if found[1] else found[0]


# A word of a shell: quotes may be inside it, and escaped spaces. These two never go back (*+ and ++).
_WORD = _lazily(r"""(?:[^\s'"\\;&|()<>]|\\.?|'[^']*+(?:'|\Z)|"(?:[^"\\]|\\.?)*+(?:"|\Z))++""", re.DOTALL)
_QUOTED = _lazily(r"""\\.|(['"])((?:(?!\1)[^\\]|\\.?)*+)(\1|\Z)""", re.DOTALL)
_BEFORE_A_SCRIPT = _lazily(r"-[a-z]*c|--command")
_ASSIGNMENT = _lazily(r"([A-Za-z_][\w.-]{0,63})=")
_OPTION = _lazily(r"-{1,2}[A-Za-z][\w.-]*")
_KEY = _lazily(r"""(?<![\w.-])-{0,2}([A-Za-z_][\w.-]{0,63})(:=|=|:(?!//))""")
_SCHEME = _lazily(r"(?i)bearer|basic|token|digest|negotiate|apikey|aws4-hmac-sha256")


def _assignment(argument: str) -> str:
    """``NAME=value`` with spaces in the value, masked. Empty if the name is not that of a secret."""
    found = _ASSIGNMENT.match(argument)
    return f"{found[0]}{MASK}" if found and _is_secretive(found[1]) else ""


def _random(found: re.Match[str]) -> str:
    """A long word of upper and lower case and digits, which is not a path, was made by a machine."""
    word = found[0]
    is_mixed = any(map(str.isupper, word)) and any(map(str.islower, word)) and sum(map(str.isdigit, word)) > 2
    return MASK if is_mixed and word.count("/") < 4 else word


def _run(found: re.Match[str]) -> str:
    """What has no space in it: a URL, or ``user:password@host``."""
    return _PARAMETER.sub(_parameter, _without_password(found[0]))


def _without_password(run: str) -> str:
    before, slashes, after = run.partition("//")
    if slashes:
        user, at, host = after.rpartition("@")
        authority, _slash, _path = after.partition("/")
        # A password may contain a slash. A path may contain an @.
        is_user = "@" in authority or (":" in user and not authority.rpartition(":")[2].isdecimal())
        return f"{before}//{MASK}@{host}" if at and is_user else run
    user, at, host = run.rpartition("@")
    own = user.rpartition("=")[2]
    if ":" in own and "/" not in own and not host.startswith("sha256:"):
        return f"{user.removesuffix(own)}{MASK}@{host}" if at else run
    return run


def _parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={MASK}" if _is_secretive(unquote(found[1])) else found[0]


def _without_pairs_of_json(text: str) -> str:
    shown, at = [], 0
    for key in _JSON_KEY.finditer(text):
        if key.start() >= at and _is_secretive(key[2]) and (value := _JSON_VALUE.match(text, key.end())):
            shown += [text[at : key.end()], MASK]
            at = value.end()
    return "".join([*shown, text[at:]])


def _of_user(value: str) -> str:
    """``user:password`` or ``user%password``. Empty if it is neither."""
    user, mark, password = value.strip("'\"").partition(":" if ":" in value else "%")
    return f"{user}{mark}{MASK}" if user and password and not password.startswith("//") else ""


def _is_secret_if_decoded(word: str) -> bool:
    """Whether the word has a secret in it that percent encoding hides."""
    plain = unquote(unquote(word))
    return plain != word and _Line(is_decoded=True).text(plain) != plain
