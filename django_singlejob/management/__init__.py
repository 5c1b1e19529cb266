"""What the management commands share; the commands themselves are thin.

Options are text on the command line or Python values, and the exit status says how a run ended.
"""
