"""What a server does all day: look for what is due, and run it.

Any number of servers may do this at the same time, as often as they like: each slot and each one-off is run once.
"""
