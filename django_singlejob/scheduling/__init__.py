"""When a job is due, and which of its slots to run now.

Pure functions over aware datetimes: they give the same results on every server and use no clock and no database.
"""
