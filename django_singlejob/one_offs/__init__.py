"""Runs that are asked for in advance: a one-off of a job, or one of Django's tasks.

What is enqueued is a row, which no crash loses, and it comes out of the row as it went in, on every database.
"""
