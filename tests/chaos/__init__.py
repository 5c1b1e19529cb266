"""Fault injection: servers race for one lock while they are killed, stopped and cut off; then their history is judged.

`python -m tests.chaos --seconds 60 --servers 6 --seed 1`, on the database in DATABASE_URL (default: an SQLite file).
"""
