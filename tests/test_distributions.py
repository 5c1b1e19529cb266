"""The wheel and the sdist: what they contain, and whether a new project in an empty environment works with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_string
from pathlib import Path
from textwrap import dedent
from zipfile import ZipFile

import pytest

import django_singlejob
from tests.children import ROOT

# What is installed does not depend on the database.
pytestmark = [pytest.mark.on_database("sqlite"), pytest.mark.long]

PACKAGE = Path(django_singlejob.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DJANGOS = re.findall(r"Framework :: Django :: (\d+\.\d+)", "\n".join(PROJECT["classifiers"]))


def run(*command: object, cwd: Path) -> str:
    """What the command printed on both streams. It knows nothing of this environment, its settings and its database."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO_", "COV_", "PYTHON", "SINGLEJOB_")) and name != "DATABASE_URL"
    }
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=kept, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def built(source: Path, kind: str, folder: Path) -> Path:
    """The distribution of this kind, built from this source."""
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder, cwd=source)
    (distribution,) = folder.iterdir()
    return distribution


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


def files_in(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_contains_the_whole_package_and_nothing_else(wheel: Path) -> None:
    ours = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files_in(wheel).keys() == {str(path.relative_to(ROOT)) for path in ours}
    assert {path.suffix for path in ours} >= {".py", ".html", ".js", ".css", ".mo"}
    assert "django_singlejob/py.typed" in files_in(wheel)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_string(archive.read(name).decode())
    assert metadata["Version"] == django_singlejob.__version__
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in PROJECT["urls"].items()]
    assert str(metadata.get_payload()).startswith("# django-singlejob\n")


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {path.name for path in source.iterdir()} >= {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"}
    assert files_in(built(source, "wheel", tmp_path / "again")) == files_in(wheel)


JOBS = '''\
from django_singlejob import singleton_job


@singleton_job(schedule="5 * * * *")
def hourly_report():
    """Adds up what was sold in the last hour."""
    print("The report is ready.")
'''
LOOK = """
    import shop.wsgi
    from django.contrib.auth.models import User
    from django.contrib.staticfiles.finders import find
    from django.test import Client

    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("admin"))
    for page in "overview", "jobstatus", "jobrun":
        answer = client.get(f"/admin/django_singlejob/{page}/")
        print(answer.status_code, "hourly_report" in answer.text, "Läufe" in answer.text)
    print(find("django_singlejob/admin.css"))
"""


@pytest.mark.parametrize("django", DJANGOS)
def test_a_new_project_works_with_it(django: str, wheel: Path, tmp_path: Path) -> None:
    if django >= "6" and sys.version_info < (3, 12):
        pytest.skip("Django 6.0 needs Python 3.12")
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python, shop = tmp_path / "venv" / "bin" / "python", tmp_path / "shop"
    run(python, "-m", "pip", "install", "--quiet", f"django~={django}.0", wheel, cwd=tmp_path)

    shop.mkdir()
    run(python, "-m", "django", "startproject", "shop", ".", cwd=shop)
    run(python, "manage.py", "startapp", "reports", cwd=shop)
    (shop / "reports" / "jobs.py").write_text(JOBS)
    with (shop / "shop" / "settings.py").open("a") as settings:
        settings.write('INSTALLED_APPS += ["django_singlejob", "reports"]\nLANGUAGE_CODE = "de"\n')
    assert "No changes detected" in run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=shop)
    assert "Applying django_singlejob.0001_initial... OK" in run(python, "manage.py", "migrate", cwd=shop)
    ran = run(python, "manage.py", "run_singleton", "hourly_report", "--now", cwd=shop)
    assert ran == "The report is ready.\n"

    (shop / "look.py").write_text(dedent(LOOK))
    *pages, found = run(python, "look.py", cwd=shop).splitlines()
    assert pages == ["200 True True"] * 3
    assert found.startswith(str(tmp_path / "venv"))
    assert django_singlejob.__version__ in run(python, "-m", "pip", "show", "django-singlejob", cwd=shop)
