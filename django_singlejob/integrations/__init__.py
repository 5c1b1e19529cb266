"""How other services hear of the jobs.

Each module serves one of them, and is imported only by a project that uses it. They use what is public: the signals,
the jobs, the settings, and ``django_singlejob.status()``.
"""
