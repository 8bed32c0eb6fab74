"""Which small models may live beside the engine. Pure: memory facts and the time are arguments."""
