"""``manage.py create_admin``: a superuser with a new password, to look at the admin on your own machine."""

import errno
import secrets
import socket
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser

NAME = "admin"


class Command(BaseCommand):
    help = f"Gives the superuser {NAME!r} a new random password, and prints it. Creates the user if there is none."
    requires_migrations_checks = True

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="The port of runserver (default: 8000).")

    def handle(self, *, port: int, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The password is printed, so this command works only with DEBUG = True.")
        _refuse_used(port)
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.get_or_create(
            username=NAME, defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(password)
        user.save()
        self.stdout.write(f"\nhttp://127.0.0.1:{port}/admin/\n    user:     {NAME}\n    password: {password}\n")


def _refuse_used(port: int) -> None:
    """So that no password is set for a server that cannot start."""
    try:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as runserver does
            server.bind(("127.0.0.1", port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"Port {port} is in use. Choose another one: make serve PORT={port + 1}"
            raise CommandError(message) from error
