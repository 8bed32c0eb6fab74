"""How cost grows with what is asked for: curves of steps, first tokens, memory, the gateway, the queue and the turn."""
