"""Every write that decides something, and every adjective: a file for each kind of row.

Each write is one conditional statement, judged by the number of rows it changed and by the database's clock. Reading
again would not do: a REPEATABLE READ snapshot is stale. ``save()`` and ``delete()`` of an instance would not do:
they resurrect a row, or end the lease of a successor.
"""
