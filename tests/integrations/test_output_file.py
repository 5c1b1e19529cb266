"""The file to which what a run prints is appended; `processes/test_shell_jobs.py` has real runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_singlejob.integrations import output_file
from django_singlejob.integrations.output_file import OutputFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_folder_that_is_missing_holds_up_one_run_and_not_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(output_file, "PATIENCE", 0.2)
    monkeypatch.setattr(output_file, "sleep", naps.append)

    def write(name: str) -> None:
        file = OutputFile(str(tmp_path / "missing" / name), name)
        file.write(b"one")
        file.end()

    write("nightly.log")
    assert naps
    naps.clear()
    write("hourly.log")
    assert not naps
    assert caplog.text.count("is not written to") == 2
    (tmp_path / "missing").mkdir()
    write("hourly.log")
    assert (tmp_path / "missing" / "hourly.log").read_text() == "one"
