"""What every process has: its clocks, its signals, its log, its stack, and the text that it prints.

Nothing here knows about jobs, locks or tables.
"""
