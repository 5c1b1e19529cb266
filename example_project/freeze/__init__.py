"""A worker is frozen and wakes too late, under a plain lock and under ours: ``manage.py freeze``."""
