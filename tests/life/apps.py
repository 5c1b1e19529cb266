from __future__ import annotations

from django.apps import AppConfig

from tests.life import project


class LifeConfig(AppConfig):
    name = "tests.life"
    label = "life"

    def ready(self) -> None:
        is_executor = project.is_executor()
        if not is_executor:
            self.metrics = project.serve_metrics()
            project.write_pid_file()
        project.note("loaded", is_executor)
