"""How everything is doing, for people and for monitoring.

It only reads: nothing here decides who may run, or makes another process wait.
"""
