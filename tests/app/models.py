from __future__ import annotations

from django.db import models


class Counter(models.Model):
    """A number that only a lock protects: read it, wait, write it back."""

    name = models.CharField(max_length=100, primary_key=True)
    value = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


class FencedWrite(models.Model):
    """Something that a holder wrote inside `lease.atomic()`: the fences must never decrease."""

    id = models.BigAutoField(primary_key=True)
    lock = models.CharField(max_length=100)
    fence = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.id}: {self.lock}, {self.fence}"


class SlotRun(models.Model):
    """A slot of a schedule that ran to its end, and when it ended by the database's clock."""

    id = models.BigAutoField(primary_key=True)
    slot = models.DateTimeField()
    attempt = models.IntegerField()
    ended_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.id}: {self.slot}, attempt {self.attempt}"


class Note(models.Model):
    """What a project may have: rows that point at ours, so that the admin completes their names. It has no table."""

    about_lock = models.ForeignKey("django_singlejob.JobLock", models.DO_NOTHING, related_name="+")
    about_job = models.ForeignKey("django_singlejob.JobStatus", models.DO_NOTHING, related_name="+")
    about_run = models.ForeignKey("django_singlejob.JobRun", models.DO_NOTHING, related_name="+")
    about_one_off = models.ForeignKey("django_singlejob.OneOffJob", models.DO_NOTHING, related_name="+")

    class Meta:
        managed = False

    def __str__(self) -> str:
        return str(self.pk)
