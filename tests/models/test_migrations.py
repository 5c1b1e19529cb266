from __future__ import annotations

import pytest
from django.core.management import call_command


@pytest.mark.django_db
def test_the_migrations_are_complete(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("makemigrations", "django_singlejob", "--check", "--dry-run")
    assert "No changes detected in app 'django_singlejob'" in capsys.readouterr().out
