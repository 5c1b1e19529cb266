"""What people do to jobs, runs and tasks by hand. The admin and the commands lead here."""
