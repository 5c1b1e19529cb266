"""Restarts a command whose code has changed, as a worker does if DEBUG is on."""

import os
import sys

from django_singlejob.management.output import flush
from django_singlejob.process import program


def start_anew() -> None:
    """Replace this process with a new one of the same program. Does not return."""
    flush([sys.stdout, sys.stderr])
    os.chdir(program.directory or os.curdir)
    os.execve(sys.executable, program.command_line(), program.environment())  # noqa: S606
