"""Audit somebody's Flower app as it is: run it under witnesses, ask about what they saw, and judge."""
