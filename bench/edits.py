"""A file to be changed, and what to change: answers that repeat most of what was read, as an editor's requests do."""

from __future__ import annotations


def edit(thing: str) -> str:
    return f"Repeat this file exactly, but write `colour = red`:\n\n```\n{file(thing)}```"


def file(thing: str) -> str:
    lines = (
        f"name = {thing}", "owner = the town", "year = 1931", "colour = green", f"keeper = the {thing} club",
        "visitors = 1200", "open = monday, tuesday, friday", "closed = sunday", f"story = This is {thing} of our town.",
        "roof = slate", "doors = 4", "windows = 12", "garden = yes", "coffee = yes", "ticket = 3.50",
        "children = free", "phone = 555 0142", "street = Station Road 7", "bus = 12, 14, 31", "parking = no",
        "guide = every hour", "languages = english, german, dutch", "photos = allowed", "dogs = on a lead",
        "repairs = 1958, 1987, 2011", f"next = A new sign for {thing}.",
    )  # fmt: skip
    return "\n".join(lines) + "\n"
