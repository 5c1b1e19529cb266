from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.backends.signals import connection_created
from django.utils.translation import gettext_lazy as _

from django_singlejob import checks, cutoff


class SingleJobConfig(AppConfig):
    name = "django_singlejob"
    verbose_name = _("Single jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        register(checks.check_settings)
        register(checks.check_task_modules)
        register(checks.check_time)
        register(checks.check_jobs)
        register(checks.check_database)
        register(checks.check_server, Tags.database)
        connection_created.connect(cutoff.remember)
