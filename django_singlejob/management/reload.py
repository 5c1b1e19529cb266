"""Restarts a command whose code has changed, as a worker does if DEBUG is on."""

import os
import sys

from django.utils import autoreload

from django_singlejob.management.output import flush


def start_anew() -> None:
    """Replace this process with a new one that runs the same command. Does not return."""
    flush([sys.stdout, sys.stderr])
    os.execv(sys.executable, autoreload.get_child_arguments())  # noqa: S606
