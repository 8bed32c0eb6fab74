"""Calls of tools, found in a model's text as it is written. Read `reader` first."""
