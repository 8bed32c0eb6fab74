"""The process that speaks HTTP to clients: text in, text out. It never touches a tensor."""
