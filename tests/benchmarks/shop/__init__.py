"""A small project whose command lines are measured: see `processes`."""
