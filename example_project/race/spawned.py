"""Where the process of a server begins. Nothing that needs Django's models is imported before they are loaded."""

import signal

import django
from django.utils.module_loading import import_string


def serve_as_process(serve: str, *arguments: object) -> None:
    """Call the function that has this dotted path."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the starter, which closes the line
    django.setup()
    import_string(serve)(*arguments)
