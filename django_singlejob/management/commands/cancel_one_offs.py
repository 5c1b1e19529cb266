"""``manage.py cancel_one_offs``: cancel one-offs and tasks that wait."""

from typing import Any

from django_singlejob.management.one_off_choice import OneOffCommand
from django_singlejob.models.one_offs import OneOffJobQuerySet


class Command(OneOffCommand):
    help = "Cancels one-offs and tasks that have not begun. Those in progress continue to their end."
    done, verb, only = "Cancelled", "cancel", "only waiting ones can be cancelled"

    def changeable(self, rows: OneOffJobQuerySet, given: dict[str, Any]) -> OneOffJobQuerySet:
        return rows.waiting()

    def act(self, rows: OneOffJobQuerySet) -> int:
        return rows.cancel()
