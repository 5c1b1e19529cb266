"""Which code runs here, so that a server is seen that a deploy has left out."""

import sys
from pathlib import Path

from django.conf import settings

from django_singlejob.conf import options
from django_singlejob.models.passes import RELEASE_LENGTH
from django_singlejob.process.escaping import printable

COMMIT_LENGTH = 12


def this_release() -> str:
    """``RELEASE``, or else the commit of the git checkout that has the project's settings. Empty if there is none."""
    release = options().release
    return printable(_commit() if release is None else release, RELEASE_LENGTH)


def _commit() -> str:
    # Not git itself: it may not be installed, and refuses a checkout of another user.
    file = getattr(sys.modules.get(str(settings.SETTINGS_MODULE)), "__file__", None) or "manage.py"
    folders = (folder / ".git" for folder in Path(file).resolve().parents)
    git = next((folder for folder in folders if folder.is_dir()), None)
    if git is None:
        return ""
    try:
        head = (git / "HEAD").read_text().split()[-1]  # a commit, or, after "ref:", the name of a branch
        return (_commit_of(git, head) if head.startswith("refs/") else head)[:COMMIT_LENGTH]
    except (OSError, ValueError, IndexError):
        return ""


def _commit_of(git: Path, branch: str) -> str:
    """In a file of its own, or in that of many."""
    if (file := git / branch).is_file():
        return file.read_text().strip()
    lines = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {branch}")), "")
