"""The pages for monitoring: ``path("singlejob/", include("django_singlejob.urls"))``."""

from importlib.util import find_spec

from django.urls import path

from django_singlejob.database.transactions import outside_requests
from django_singlejob.integrations.health import health

app_name = "django_singlejob"
urlpatterns = [path("health/", outside_requests(health), name="health")]

if find_spec("prometheus_client"):
    from django_singlejob.integrations.prometheus import metrics

    urlpatterns.append(path("metrics/", outside_requests(metrics), name="metrics"))
