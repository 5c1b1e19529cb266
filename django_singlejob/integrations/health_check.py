"""A check for ``django-health-check``: install ``django-singlejob[health-check]``.

::

    HealthCheckView.as_view(checks=["django_singlejob.integrations.health_check.SingleJobs"])
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.db import Error, close_old_connections
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable

import django_singlejob


@dataclass
class SingleJobs(HealthCheck):  # type: ignore[misc]
    """Fails if something is critical, or if the database does not answer. A warning passes."""

    def run(self) -> None:
        """Raises ``ServiceUnavailable`` with the number of findings of each kind, but no names."""
        try:
            status = django_singlejob.status()
        except Error as error:
            raise ServiceUnavailable("The database does not answer.") from error
        except Exception as error:
            raise ServiceUnavailable("The status cannot be read.") from error
        finally:
            close_old_connections()  # it runs in a thread of its own
        if status.level == "critical":
            kinds = Counter(finding.kind for finding in status.findings if _is_critical(finding))
            raise ServiceUnavailable(", ".join(f"{count} {kind}" for kind, count in kinds.items()))


def _is_critical(finding: Any) -> bool:
    return finding.level == "critical" and finding.acknowledged_until is None
