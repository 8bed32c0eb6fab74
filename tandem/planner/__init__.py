"""Documents and facts about a box become a plan. Pure: no clock, no file, no process, no torch."""
