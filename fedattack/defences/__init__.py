"""Defences that a client applies to its update before it is sent."""
