import time
from datetime import timedelta

from django_singlejob import singleton_job

from .results import Visit

# Long enough for most losers to meet the holder, short enough for a hundred rounds. Seconds.
WORK = 0.02


# The lock alone does not make one winner a round: a server that is slow to start would find it free again. It is the
# paper's own gap. min_interval closes it as it does in a crontab: who comes within half an hour is told "already ran".
@singleton_job("race", min_interval=timedelta(minutes=30))
def contested() -> Visit:
    """An hourly job of 20 ms, which all servers of `manage.py race` want to run at the same moment."""
    entered_at = time.monotonic()
    time.sleep(WORK)
    return Visit(entered_at, time.monotonic())
