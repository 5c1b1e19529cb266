"""Calls one command in several processes at once, and prints the exit status and the output of each as JSON.

The processes are forked, so that they begin together.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack

import django

from tests.processes.every_command import exit_status_of, said, start


def main(count: int, words: list[str]) -> None:
    django.setup()
    with ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        pids = [start(words, output) for output in outputs]
        statuses = [exit_status_of(pid) for pid in pids]
        print(json.dumps([[status, said(output)] for status, output in zip(statuses, outputs, strict=True)]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
