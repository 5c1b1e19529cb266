"""Which code runs here."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from django_singlejob.monitoring.this_release import COMMIT_LENGTH, commit_at_start, this_release

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django.fixtures import Settings


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Path:
    """A git checkout with one commit; the settings are in a folder of it."""
    module = ModuleType("shop_settings")
    module.__file__ = str(tmp_path / "shop" / "shop_settings.py")
    monkeypatch.setitem(sys.modules, "shop_settings", module)
    settings.SETTINGS_MODULE = "shop_settings"
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    forget()
    return tmp_path


def forget() -> None:
    """As another process."""
    commit_at_start.cache_clear()


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    git(folder, *author, "commit", "-q", "--allow-empty", "-m", "Work")


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")[:COMMIT_LENGTH]


def test_it_is_the_commit(checkout: Path) -> None:
    before = head(checkout)
    assert this_release() == before
    commit(checkout)
    assert this_release() == before  # the code that this process runs is that of its start
    forget()
    assert this_release() == head(checkout) != before


def test_it_is_the_commit_of_a_worktree(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout, "worktree", "add", "-q", "-b", "other", "shop")
    commit(checkout)
    assert this_release() == head(checkout / "shop") != head(checkout)
    git(checkout, "pack-refs", "--all")
    forget()
    assert this_release() == head(checkout / "shop")


def test_it_is_the_commit_if_the_branches_are_in_one_file(checkout: Path) -> None:
    git(checkout, "branch", "other")
    git(checkout, "pack-refs", "--all")
    assert this_release() == head(checkout)


def test_it_is_the_commit_of_no_branch(checkout: Path) -> None:
    git(checkout, "checkout", "-q", "--detach")
    assert this_release() == head(checkout)


@pytest.mark.parametrize("content", [b"", b"ref: refs/heads/none", b"ref:", b"\xff"])
def test_what_is_no_checkout_has_none(checkout: Path, content: bytes) -> None:
    (checkout / ".git" / "HEAD").write_bytes(content)
    assert len(this_release()) <= len("ref:")


def test_the_setting_goes_before_it(checkout: Path, settings: Settings) -> None:
    settings.SINGLEJOB = {"RELEASE": "2026.11"}
    assert this_release() == "2026.11"


def test_a_long_one_is_cut(settings: Settings) -> None:
    settings.SINGLEJOB = {"RELEASE": "x" * 1_000}
    assert this_release() == "x" * 64
