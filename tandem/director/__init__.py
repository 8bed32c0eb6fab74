"""The director: makes the processes match the plan, one small step at a time, and says what it sees.

Read `decide.py` first (pure), then `loop.py` (effects).
"""
