"""What a generation is asked to be, and watching what it becomes. Pure: no clock, no sockets, no tensors."""
