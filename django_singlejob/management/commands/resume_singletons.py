"""``manage.py resume_singletons``: allow new runs of paused jobs again."""

from django_singlejob.locking.pausing import resume
from django_singlejob.management.pause_or_resume import GateCommand


class Command(GateCommand):
    help = "Resumes paused jobs: they run again when they are due, and so do their one-offs."
    act = resume
    done = "Resumed"
    not_done = "was not paused"
