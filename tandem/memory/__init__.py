"""Bytes: how many there are, and (elsewhere in this folder) who holds them. Knows neither requests nor models."""
