"""Marking that a pass began, for monitoring: between two passes of ``--once`` there is no lock to see."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from django_singlejob.database import errors, transactions
from django_singlejob.database.time_limits import limited
from django_singlejob.models.passes import passes
from django_singlejob.process.holder import this_process
from django_singlejob.process.logs import about

logger = logging.getLogger("django_singlejob")

# How long each statement may take: what is due waits meanwhile.
PATIENCE = timedelta(milliseconds=500)


def mark_pass(queues: Sequence[str] = ()) -> None:
    """Record that a pass over these queues begins. Whatever goes wrong, the pass goes on."""
    alias = transactions.alias()
    try:
        with transactions.durable(alias, statement_timeout=PATIENCE), limited(alias, PATIENCE):
            passes().mark(queues, this_process())
    except Exception as error:
        message = "Monitoring does not see this pass, because it could not be recorded: %s"
        logger.warning(message, errors.words_of(error), extra=about(reason=error))
        if errors.is_connection_lost(error):
            transactions.drop(alias)
