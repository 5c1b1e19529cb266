from __future__ import annotations

from django_singlejob import singleton_job

singleton_job("twice")(print)
singleton_job("twice")(input)
