"""What is given on a command line, from text."""

import argparse
from datetime import timedelta

from django_singlejob.conf import ZERO


def seconds(text: str) -> timedelta:
    """A duration, zero or longer."""
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        duration = None
    if duration is None or duration < ZERO:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds.")
    return duration


def whole_number(text: str) -> int:
    """A count, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number, 0 or more.")
    return int(text)
