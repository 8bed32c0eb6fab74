"""Tokens in, tokens out: who runs where, one pass at a time. Read `engine.turn` first, then `round.step`."""
