"""The worker: it looks for what is due and runs it.

Any number of workers may run at the same time, on any number of servers: each slot and each one-off is run once.
"""
