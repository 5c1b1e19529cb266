"""Which code runs here, so that a server is seen that a deploy has left out."""

import sys
from functools import cache
from pathlib import Path

from django.conf import settings

from django_singlejob.conf import options
from django_singlejob.models.passes import RELEASE_LENGTH
from django_singlejob.process.escaping import printable

COMMIT_LENGTH = 12


def this_release() -> str:
    """``RELEASE``, or else the commit of the git checkout that has the project's settings. Empty if there is none."""
    release = options().release
    return printable(commit_at_start() if release is None else release, RELEASE_LENGTH)


@cache  # this process does not run the code of a later one
def commit_at_start() -> str:
    """The commit of the checkout when this was first asked; empty if there is none."""
    # Not git itself: it may not be installed, and refuses a checkout of another user.
    file = getattr(sys.modules.get(str(settings.SETTINGS_MODULE)), "__file__", None) or "manage.py"
    places = (folder / ".git" for folder in Path(file).resolve().parents)
    place = next((place for place in places if place.exists()), None)
    try:
        return _head(_folder(place))[:COMMIT_LENGTH] if place else ""
    except (OSError, ValueError, IndexError):
        return ""


def _folder(place: Path) -> Path:
    """Of a worktree or a submodule, a file says where it is."""
    return place if place.is_dir() else place.parent / place.read_text().removeprefix("gitdir:").strip()


def _head(git: Path) -> str:
    head = (git / "HEAD").read_text().split()[-1]  # a commit or, after "ref:", the name of a branch
    if not head.startswith("refs/"):
        return head
    common = git / "commondir"  # where a worktree has its branches
    git = git / common.read_text().strip() if common.exists() else git
    if (file := git / head).is_file():
        return file.read_text().strip()
    lines = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {head}")), "")
