"""A whole decode step of a llama-like model as one native call, for CPUs."""
