"""Database backends whose steps are steps of the simulation."""
