"""Every write that decides something, and every filter, with one file for each kind of row.

Each write is one conditional statement, judged by the number of rows it changed and by the database's clock. Reading
the row again would not work, because a REPEATABLE READ snapshot is stale. ``save()`` and ``delete()`` of an instance
would not work either, because they resurrect a row or end the lease of a successor.
"""
