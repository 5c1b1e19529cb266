"""The catalogs hold each text of the code, translated. ``make messages`` brings them up to date."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from gettext import GNUTranslations
from pathlib import Path
from typing import Any

import pytest

import django_singlejob

PACKAGE = Path(django_singlejob.__file__).parent
LANGUAGES = ["de", "es"]
PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%%|%[.\d]*[a-z]|\{[\w!:,]*\}")

each_language = pytest.mark.parametrize("language", LANGUAGES)
needs_gettext = pytest.mark.skipif(not shutil.which("xgettext"), reason="xgettext is not installed (apt: gettext)")


def catalog(language: str) -> Path:
    return PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po"


def texts(compiled: Path) -> dict[Any, str]:
    """The translations, by text, or by text and number of the plural form; without the header."""
    with compiled.open("rb") as file:
        found: dict[Any, str] = vars(GNUTranslations(file))["_catalog"]
    return {key: text for key, text in found.items() if key}


def run(*command: object, cwd: Path = PACKAGE) -> str:
    """What the command printed on both streams. It has no settings: in the directory it runs in, they are not found."""
    environ = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    arguments = [str(part) for part in command]
    done = subprocess.run(arguments, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with all texts of the code, and no translation."""
    copy = tmp_path_factory.mktemp("extracted") / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    run(sys.executable, "-m", "django", "makemessages", "--locale", LANGUAGES[0], "--no-location", cwd=copy)
    return copy / "locale" / LANGUAGES[0] / "LC_MESSAGES" / "django.po"


@needs_gettext
@pytest.mark.slow
@each_language
def test_each_text_is_translated_and_no_other(language: str, extracted: Path) -> None:
    """Nothing is missing, fuzzy, untranslated or obsolete."""
    assert run("msgcmp", catalog(language), extracted) == ""
    assert not re.search("^#(~|,.*fuzzy)", catalog(language).read_text(), re.MULTILINE)


@needs_gettext
@each_language
def test_the_compiled_catalog_is_that_of_the_text(language: str, tmp_path: Path) -> None:
    run("msgfmt", "--check-format", "--output-file", tmp_path / "django.mo", catalog(language))
    assert texts(catalog(language).with_suffix(".mo")) == texts(tmp_path / "django.mo")


@each_language
def test_a_translation_has_the_placeholders_of_its_text(language: str) -> None:
    for key, translated in texts(catalog(language).with_suffix(".mo")).items():
        text, form = key if isinstance(key, tuple) else (key, None)
        wanted, found = (Counter(PLACEHOLDER.findall(each)) for each in (text, translated))
        # "Every minute" needs no number, and "The last hour" has none, unlike its plural.
        assert found == wanted or (found < wanted if form == 0 else form and found > wanted), (text, translated)
