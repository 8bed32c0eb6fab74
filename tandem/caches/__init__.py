"""Conversations kept and found again, in memory and on disk. Knows sequence states and the budget, not requests."""
