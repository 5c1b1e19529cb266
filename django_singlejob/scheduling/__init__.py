"""When a job is due, and which of its slots is to be run now.

Pure functions over aware datetimes: the same on every server, without a clock and without a database.
"""
