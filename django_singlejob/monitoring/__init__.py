"""How everything is doing, for people and for monitoring.

It only reads, but for the marks of servers: nothing here decides who may run, or makes another process wait for long.
"""
