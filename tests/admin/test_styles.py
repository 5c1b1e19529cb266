"""Our style sheets: a theme may lack any variable of Django's own."""

from __future__ import annotations

import re
from pathlib import Path

from django.contrib import admin

from tests.children import ROOT

OURS = "".join(sheet.read_text() for sheet in (ROOT / "django_singlejob/static").rglob("*.css"))
DJANGOS = "".join(sheet.read_text() for sheet in (Path(admin.__file__).parent / "static/admin/css").rglob("*.css"))


def defined(sheets: str) -> set[str]:
    return set(re.findall(r"(--[\w-]+)\s*:", sheets))


def test_each_variable_is_our_own_or_one_of_djangos_with_a_fallback() -> None:
    used = re.findall(r"var\((--[\w-]+)\s*([,)])", OURS)
    assert used
    own = defined(OURS)
    assert all(name.startswith("--singlejob-") for name in own)
    assert [name for name, end in used if name not in own and end != ","] == []
    assert {name for name, _end in used} <= own | defined(DJANGOS)


def test_only_the_style_sheets_use_variables() -> None:
    others = [path for kind in ("py", "js", "html") for path in (ROOT / "django_singlejob").rglob(f"*.{kind}")]
    assert [path.name for path in others if "var(--" in path.read_text()] == []
