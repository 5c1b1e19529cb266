"""A crontab becomes jobs: ``manage.py singleton_adopt``, or ``python -m django_singlejob.adopt`` without a project."""
