"""How a command runs a body: a supervisor holds the lease, and an executor, another process, runs the body.

Whatever the body does, it is over before its lock is given to anybody else, and its end is recorded.
"""
