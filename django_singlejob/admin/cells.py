"""How things look, in a table or elsewhere: text first, colour second, and everything escaped."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.urls import NoReverseMatch
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_singlejob.admin.addresses import address
from django_singlejob.conf import ZERO
from django_singlejob.process import escaping

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    from django_singlejob.admin.history import PastRun

NOTHING = "-"
NO_BREAK_SPACE = "\xa0"
BREAK = SafeString("<wbr>")
_KEPT_WHOLE = r'<span class="singlejob-whole">\g<0></span>'
# A colour for each state of a job, a lock, a run or a one-off, and for each level. Some of their names are the same.
TONES = {
    "warning": "warn",
    "critical": "bad",
    "successful": "good",
    "done": "good",
    "held": "busy",
    "running": "busy",
    "in_progress": "busy",
    "overrunning": "warn",
    "delayed": "warn",
    "unseen": "warn",
    "interrupted": "warn",
    "paused": "warn",
    "impossible": "bad",
    "stale": "bad",
    "overdue": "bad",
    "ahead": "bad",
    "failing": "bad",
    "failed": "bad",
    "abandoned": "bad",
}
ERROR_LENGTH = 120

# Where a word has parts, as `import_|catalogue`, `SMTPServer|Disconnected` and `web-1.|example.|com` have.
_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[_./:@,;=-])(?=[^\W_])(?<!\s-)(?<!\s--)")
# Browsers end a line after any hyphen, even after those of `--threads`.
_OPTION = re.compile(r"(?<=\s)--?\w")
# Words, and the beginning of one that is longer than a narrow column is wide.
_PIECE = re.compile(r"(?:\S{1,15}\s+|\s+)*+\S{0,16}")

_MILLISECOND, _SECOND, _MINUTE = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


def tone(value: str) -> str:
    """The colour of a state: good, busy, warn, bad or quiet."""
    return TONES.get(value, "quiet")


def badge(value: str, label: "_StrOrPromise") -> SafeString:
    """A state: its label, on its colour."""
    return format_html('<span class="singlejob-badge singlejob-{}">{}</span>', tone(value), label)


def noted(main: object, note: object) -> SafeString:
    """A value, with a note below it if there is one."""
    main, note = _harmless(main), _harmless(note)
    return format_html('{}<span class="singlejob-note">{}</span>', main, note) if note else format_html("{}", main)


def narrow(main: object, *notes: object) -> SafeString:
    """A value, with notes below it that only a narrow list shows, which has no room for their columns."""
    shown = format_html_join("", '<span class="singlejob-note singlejob-narrow">{}</span>', _given(notes))
    return format_html("{}{}", main, shown)


def _given(notes: Iterable[object]) -> Iterator[tuple[object]]:
    return ((_harmless(note),) for note in notes if note and note != NOTHING)


def _harmless(value: object) -> object:
    """A text in which nothing is invisible or changes the direction of writing; what is HTML already is left alone."""
    return escaping.shown(value) if isinstance(value, str) and not isinstance(value, SafeString) else value


def breakable(text: str) -> SafeString:
    """A name or an error, in which a line may end between the parts of a word, and within a part only if it is long."""
    parts = _JOINT.split(escaping.shown(text))
    pieces = (escape(piece) for part in parts for piece in _PIECE.findall(part) if piece)
    return format_html_join(BREAK, "{}", ((SafeString(_OPTION.sub(_KEPT_WHOLE, piece)),) for piece in pieces))


def grouped(count: int) -> str:
    """``1,000``, or as the language of the user writes it."""
    return number_format(count, force_grouping=True)


def at_least(count: int, *, is_cut: bool) -> str:
    """The figure, if more may have been left out."""
    return _("at least %s") % grouped(count) if is_cut else str(count)


def figure(number: float) -> str:
    """Any number, rounded to six digits if it is not whole: ``0.25``, or ``0,25`` if the user writes it so."""
    return grouped(number) if isinstance(number, int) else number_format(f"{number:.6g}")


def duration(length: timedelta | None) -> str:
    """Two units at most, on one line: ``350 ms``, ``1.2 s``, ``2 min 7 s``, ``3 d 4 h``."""
    return NOTHING if length is None else _in_units(max(length, ZERO)).replace(" ", NO_BREAK_SPACE)


def _in_units(length: timedelta) -> str:
    if length < _SECOND:
        return _("%d ms") % (length // _MILLISECOND)
    if length < 10 * _SECOND:
        return _("%s s") % number_format(length // (_SECOND / 10) / 10, 1)
    if length < _MINUTE:
        return _("%d s") % (length // _SECOND)
    if length < _HOUR:
        return _("%(minutes)d min %(seconds)d s") % {
            "minutes": length // _MINUTE,
            "seconds": length % _MINUTE // _SECOND,
        }
    if length < _DAY:
        return _("%(hours)d h %(minutes)d min") % {"hours": length // _HOUR, "minutes": length % _HOUR // _MINUTE}
    return _("%(days)d d %(hours)d h") % {"days": length // _DAY, "hours": length % _DAY // _HOUR}


def distance(instant: datetime, now: datetime) -> str:
    """``in 5 min 0 s``, ``2 h 3 min ago``."""
    if instant > now:
        return _("in %s") % duration(instant - now)
    return _("%s ago") % duration(now - instant)


def moment(instant: datetime | None, now: datetime, zone: tzinfo | None = None) -> str:
    """How far away an instant is, and below that its time in ``zone`` (``None`` for the project's own time zone)."""
    if instant is None:
        return NOTHING
    return noted(distance(instant, now), clock_time(instant, zone))


def when(run: "PastRun", now: datetime | None) -> str:
    """When a run began, and how long it took if that is known. ``now``: ``None`` if the database did not say it."""
    began = distance(run.started_at, now) if now else clock_time(run.started_at)
    return f"{began}, {duration(run.duration)}" if run.duration else began


def clock_time(instant: datetime, zone: tzinfo | None = None) -> SafeString:
    """``2026-11-21 12:05:00 CET``, in ``zone`` (``None`` for the project's own time zone)."""
    try:
        local = timezone.localtime(instant, zone)
    except OverflowError:  # in the last hours of the year 9999
        local = instant
    shown = f"{date_format(local, 'Y-m-d H:i:s' if local.second else 'Y-m-d H:i')} {local:%Z}"
    return format_html('<time datetime="{}">{}</time>', instant.isoformat(), shown)


def link(model: str, key: str | int, text: object) -> SafeString:
    """A link to the page of one of our rows, or its text if the row has a name that is in no URL."""
    try:
        url = address(f"{model}_change", quote(key))
    except NoReverseMatch:  # the name is empty, and was written by hand
        return format_html("{}", text or NOTHING)
    return format_html('<a href="{}">{}</a>', url, text)


def list_of(model: str, **query: str) -> str:
    """The URL of the list of our rows, filtered by ``query``."""
    url = address(f"{model}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def first_line(text: str) -> str:
    """The first line of an error, shortened to fit into a table."""
    return cut(next(iter(text.strip().splitlines()), ""))


def cut(text: str, length: int = ERROR_LENGTH) -> str:
    """The text, with an ellipsis at its end if it was longer than that."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def preformatted(text: str) -> SafeString | str:
    """A text of several lines."""
    safe = escaping.shown(text, keep="\n\t")
    return format_html('<pre class="singlejob-text" tabindex="0">{}</pre>', safe) if text else NOTHING
