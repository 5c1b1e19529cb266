"""A Django app for the tests: what jobs write to."""
