"""`make bench-peers`: tandem beside what people would pick instead, on this machine, in one run."""
