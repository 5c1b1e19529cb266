from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.children import ROOT


def test_a_module_imports_only_from_floors_below_its_own() -> None:
    """The floors stand in pyproject.toml; a module that stands on none is an error too."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert "1 kept, 0 broken" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
