"""The stage itself: a story fails if something goes wrong behind the scenes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from tests.browser.stage import assert_accessible

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from tests.browser.stage import Stage


pytestmark = pytest.mark.on_database("sqlite")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("document.body.innerHTML = '<p style=\"color: red\">'", "Content Security Policy"),
        ("document.body.innerHTML = '<img src=http://127.0.0.1:1/>'", "Content Security Policy"),
        ("document.body.innerHTML = '<img src=/no/such/page>'", "/no/such/page: 404"),
        ("setTimeout(() => nonsense)", "nonsense is not defined"),
        ("console.error('alas')", "alas"),
    ],
    ids=["a style", "another server", "a page that is missing", "a script that fails", "a complaint"],
)
def test_what_goes_wrong_in_a_page_is_noticed(stage: Stage, superuser: User, script: str, problem: str) -> None:
    page = stage.visit(superuser, reverse("admin:index"))
    page.evaluate(f"() => {{ {script} }}")
    page.wait_for_load_state("networkidle")
    with pytest.raises(AssertionError, match=problem):
        stage.close()
    stage.problems.clear()


def test_what_is_hard_to_read_is_noticed(stage: Stage, superuser: User) -> None:
    page = stage.visit(superuser, reverse("admin:index"))
    page.evaluate("document.body.append(document.createElement('button'))")
    with pytest.raises(AssertionError, match="Buttons must have discernible text"):
        assert_accessible(page)


def test_an_expected_refusal_is_not_a_problem(stage: Stage, superuser: User) -> None:
    stage.visit(superuser, "/admin/no/such/page/", status=404)
