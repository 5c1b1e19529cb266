"""The paper's experiment on our own lock: ``manage.py race``."""
