"""A Django app for the tests: the models that jobs write to."""
