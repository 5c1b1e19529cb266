"""Runs that are enqueued in advance: a one-off of a job, or one of Django's tasks.

Each is stored as a row, which no crash loses. Its values come back as they were stored, on every database.
"""
