"""What real projects have at once, for the tests of all others: with `--in-life`, the settings import this in each
process that a test starts."""

from __future__ import annotations

import atexit
import os
import socket
import tempfile
from threading import Event, Thread

# As tracing does.
Thread(target=Event().wait, name="tracer", daemon=True).start()

# A credential that goes with the process. To remove it twice is an error.
_file, CREDENTIAL = tempfile.mkstemp(dir=os.environ["SINGLEJOB_TEST_LIFE"])
os.close(_file)
atexit.register(os.unlink, CREDENTIAL)

SESSION = socket.socketpair()
