"""Where the process of a server begins. Nothing that needs Django's models is imported before they are loaded."""

import signal
from multiprocessing.connection import Connection

import django
from django.utils.module_loading import import_string


def serve_as_process(name: str, line: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, which closes the line
    django.setup()
    import_string("race.servers.serve")(name, line)
