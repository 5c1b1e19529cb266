"""SQLite, in a file: the fastest storage for simulations."""
