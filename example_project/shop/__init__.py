"""A small shop with three jobs: see ``jobs.py``."""
