"""Django's tasks: the backend that enqueues them as one-offs, and the engine that runs them in a worker's process.

A room around the kernel: the kernel runs jobs without it. A task that is not a job runs under its worker's lock.
"""
