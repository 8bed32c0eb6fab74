"""The usage ledger: one row a request, counts and timings, never text."""
