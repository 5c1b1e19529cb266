"""The paper's experiment, with our lock: ``manage.py race``."""
