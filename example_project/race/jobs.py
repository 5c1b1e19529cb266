import time
from datetime import timedelta

from django_singlejob import singleton_job

from .results import Visit

# In seconds. Long enough for most losers to meet the holder, short enough for a hundred rounds.
WORK = 0.02


# The lock alone does not guarantee one winner a round: a server that is slow to start would find it free again. The
# paper's recipe has this gap. min_interval closes it, as in a crontab: within half an hour the answer is "already ran".
@singleton_job("race", min_interval=timedelta(minutes=30))
def contested() -> Visit:
    """An hourly job of 20 ms, which all servers of `manage.py race` want to run at the same moment."""
    entered_at = time.monotonic()
    time.sleep(WORK)
    return Visit(entered_at, time.monotonic())
