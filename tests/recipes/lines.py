"""The lines of a shell that the recipes show, as they are run here."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from tests.children import ROOT

if TYPE_CHECKING:
    from tests.children import Child, Spawn

# Python is the child that is ended with its test. It becomes the shell.
_BECOME_SHELL = "import os, sys; os.execv('/bin/sh', ['sh', '-c', *sys.argv[1:]])"


def shell(spawn: Spawn, script: str, *arguments: str, **env: str) -> Child:
    """Run this script, with the tests' project in the place of the shop."""
    here = script.replace("/srv/shop/.venv/bin/python", "python").replace("/srv/shop/", "")
    here = here.replace("/srv/shop", str(ROOT)).replace(".venv/bin/python", "python")
    return spawn(
        "-c", _BECOME_SHELL, here.replace("python manage.py", f"{sys.executable} -m django"), *arguments, **env
    )


def prompted(text: str) -> list[str]:
    """The commands of a `console`."""
    return re.findall(r"^\$ (.+)$", text, re.MULTILINE)


def of_crontab(text: str) -> str:
    """The command of the one line of a crontab."""
    (command,) = re.findall(r"^(?:[\d*/]+ +){5}(.+)$", text, re.MULTILINE)
    return str(command)
