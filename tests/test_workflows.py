"""The files of .github: they are valid, pin what they use, and name the same versions as the package."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import django_singlejob
from tests.children import ROOT
from tests.databases import DATABASES

if TYPE_CHECKING:
    from pathlib import Path

# They read files, so it does not matter on which database.
pytestmark = pytest.mark.on_database("sqlite")

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").iterdir())
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = loaded(path)["jobs"]
    return found


def classified(prefix: str) -> list[str]:
    """The versions that the classifiers name."""
    return [each.removeprefix(prefix) for each in PROJECT["classifiers"] if re.match(rf"{prefix}\d+\.\d+$", each)]


PYTHONS = classified("Programming Language :: Python :: ")
DJANGOS = classified("Framework :: Django :: ")


# --- every workflow


@each_workflow
def test_it_uses_nothing_that_may_change_under_its_name(path: Path) -> None:
    """A workflow of this repository has no other version than itself."""
    used = re.findall(r"\buses: (?!\./)(.*)", path.read_text())
    pinned = r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [line for line in used if not re.fullmatch(pinned, line)] == []


@each_workflow
def test_an_action_has_the_same_version_everywhere(path: Path) -> None:
    everywhere = {use for each in WORKFLOWS for use in re.findall(r"\buses: (?!\./)(.*)", each.read_text())}
    for use in re.findall(r"\buses: (?!\./)(.*)", path.read_text()):
        assert [other for other in everywhere if other.partition("@")[0] == use.partition("@")[0]] == [use]


@each_workflow
def test_its_jobs_may_only_read_and_end_some_day(path: Path) -> None:
    assert loaded(path)["permissions"] == {"contents": "read"}
    assert {name for name, job in jobs(path).items() if "timeout-minutes" not in job and "uses" not in job} == set()
    assert "secrets." not in path.read_text()


def test_only_what_publishes_may_say_who_it_is() -> None:
    """Each of these jobs runs in an environment, for which a maintainer decides who may use it."""
    allowed = {
        (path.name, name): (job["permissions"], job.get("environment"))
        for path in WORKFLOWS
        for name, job in jobs(path).items()
        if "permissions" in job
    }
    assert allowed == {
        ("docs.yml", "deploy"): ({"id-token": "write", "pages": "write"}, "github-pages"),
        ("publish.yml", "publish"): ({"id-token": "write"}, "pypi"),
    }


# --- the tests


def matrix_of(name: str) -> Any:
    return jobs(GITHUB / "workflows" / "tests.yml")[name]["strategy"]["matrix"]


def test_sqlite_is_tested_with_each_python_and_django() -> None:
    matrix = matrix_of("sqlite")
    assert (matrix["python"], matrix["django"]) == (PYTHONS, DJANGOS)
    # Django 6.0 needs Python 3.12.
    assert matrix["exclude"] == [{"python": "3.11", "django": django} for django in DJANGOS if django >= "6"]


def test_the_servers_are_tested_with_the_oldest_and_the_newest_and_each_django() -> None:
    pairs = [(pair["python"], pair["django"]) for pair in matrix_of("servers")["versions"]]
    assert pairs[0] == (PYTHONS[0], DJANGOS[0])
    assert pairs[-1] == (PYTHONS[-1], DJANGOS[-1])
    assert [django for _, django in pairs] == DJANGOS


def test_each_kind_of_server_is_tested() -> None:
    servers = matrix_of("servers")["server"]
    assert {server["image"].partition(":")[0] for server in servers} == {"postgres", "mariadb", "mysql"}
    assert {server["database"] for server in servers} == {*DATABASES} - {"sqlite"}
    assert {server["extra"] for server in servers} <= PROJECT["optional-dependencies"].keys()


def test_each_night_all_parts_of_what_takes_long_run() -> None:
    parts = re.findall(r"^LONG_PARTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [" ".join(jobs(GITHUB / "workflows" / "long.yml")["long"]["strategy"]["matrix"]["part"])] == parts


# --- what is said elsewhere


def test_tox_knows_the_same_versions() -> None:
    known = set("-".join(CONFIGURATION["tool"]["tox"]["env_list"]).split("-"))
    assert known == {f"py{python}".replace(".", "") for python in PYTHONS} | {
        f"django{django}".replace(".", "") for django in DJANGOS
    }


def test_the_page_on_support_names_them() -> None:
    page = (ROOT / "docs" / "reference" / "support.md").read_text()
    assert f"| Python | {', '.join(PYTHONS)} |" in page
    assert f"| Django | {', '.join(DJANGOS)} |" in page


def test_the_oldest_python_is_the_one_that_is_required() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"django>={DJANGOS[0]}" in PROJECT["dependencies"]


def test_the_changelog_has_the_version() -> None:
    """A version in development has no section of its own yet."""
    title = "Unreleased" if ".dev" in django_singlejob.__version__ else django_singlejob.__version__
    assert f"\n## [{title}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_repository_has_one_address() -> None:
    home = PROJECT["urls"]["Homepage"]
    files = [ROOT / "pyproject.toml", ROOT / "README.md", *GITHUB.rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    texts = "\n".join(path.read_text() for path in files if path.is_file())
    assert set(re.findall(r"https://github\.com/[\w-]+/django-singlejob\b", texts)) == {home}


def test_no_page_of_the_documentation_asks_for_fonts_elsewhere() -> None:
    assert tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["theme"]["font"] is False


def test_the_other_files_are_valid() -> None:
    for path in (GITHUB / "ISSUE_TEMPLATE").iterdir():
        form = loaded(path)
        if path.name != "config.yml":
            assert form.keys() >= {"name", "description", "body"}
            assert {part["type"] for part in form["body"]} == {"textarea"}
            assert all(part["attributes"]["label"] for part in form["body"])
    assert {update["package-ecosystem"] for update in loaded(GITHUB / "dependabot.yml")["updates"]} == {
        "github-actions",
        "pip",
    }
