"""MariaDB: the row locks are those of the server."""
