"""Measures the appliance as its clients see it: through HTTP, on this machine, against itself."""
