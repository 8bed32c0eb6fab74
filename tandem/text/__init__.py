"""Ids to words and back: everything the gateway needs of a model's file besides its numbers. No torch."""
