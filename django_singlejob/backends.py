"""A backend for Django's tasks framework: on Django 6.0 and later, or on 5.2 with the extra ``tasks``.

::

    TASKS = {"default": {"BACKEND": "django_singlejob.backends.SingleJobBackend"}}
"""

from django_singlejob.tasks.backend import SingleJobBackend

__all__ = ["SingleJobBackend"]
