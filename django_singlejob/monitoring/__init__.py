"""How the jobs are doing, and what has happened lately, for people and for monitoring.

It only reads: nothing here decides anything or keeps anybody waiting.
"""
