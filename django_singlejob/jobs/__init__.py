"""The jobs of this process by name, when each is due, and which of its slots to run now.

Schedules and slots are pure functions over aware datetimes: they give the same results on every server and use no clock
and no database.
"""
