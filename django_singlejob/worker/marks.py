"""Marking that a pass began, for monitoring: between two passes of ``--once`` there is no lock to see."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from django_singlejob import database
from django_singlejob.holder import this_process
from django_singlejob.logs import about
from django_singlejob.querysets.passes import passes
from django_singlejob.time_limits import limited

logger = logging.getLogger("django_singlejob")

# How long each statement may take: what is due waits meanwhile.
PATIENCE = timedelta(milliseconds=500)


def mark_pass(queues: Sequence[str] = ()) -> None:
    """Record that a pass over these queues begins. Whatever goes wrong, the pass goes on."""
    alias = database.alias()
    try:
        with database.durable(alias, statement_timeout=PATIENCE), limited(alias, PATIENCE):
            passes().mark(queues, this_process())
    except Exception as error:
        message = "Monitoring does not see this pass, because it could not be recorded: %s"
        logger.warning(message, database.words_of(error), extra=about(reason=error))
        if database.is_connection_lost(error):
            database.drop(alias)
