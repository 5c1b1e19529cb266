"""What the management commands have in common; the commands themselves are thin.

They take words of a command line or Python's own values, and their exit statuses say what became of a run.
"""
