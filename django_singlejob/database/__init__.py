"""The differences between databases: durable transactions, broken connections, error codes, and PostgreSQL's timeline.

Nothing here knows about tables.
"""
