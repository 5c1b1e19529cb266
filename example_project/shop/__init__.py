"""A small shop with five jobs: see ``jobs.py``."""
