"""Guesses of what comes next, and what it costs to have them checked."""
