"""What `tandem verify` asks: prose, code, chats and JSON, ordinary enough that any model has something to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns from the user's first to the user's last; the model writes the next one."""

    kind: str  # prose | code | chat | json
    turns: tuple[str, ...]
    is_json: bool = False  # the answer is held to the grammar of a JSON object


_HEAD: Final = "Answer in plain words. "

_INVOICES: Final = """def total(invoices):
    result = 0
    for invoice in invoices:
        if invoice.paid:
            continue
        result += invoice.amount
    return result


def overdue(invoices, today):
    result = []
    for invoice in invoices:
        if invoice.paid:
            continue
        if invoice.due < today:
            result.append(invoice)
    return result
"""

_MINUTES: Final = (
    "The meeting began at nine. Ana reported that the bridge will be closed from Monday to Thursday. Ben asked whether "
    "buses can turn at the mill. Carla said that they can if the gate stays open. It was agreed that Ana writes to the "
    "mill, that Ben prints new timetables and that Carla tells the schools. The meeting ended at ten."
)

CONVERSATIONS: Final = (
    Conversation("prose", ("Write a story about a lighthouse keeper who finds a bottle on the beach.",)),
    Conversation("prose", ("Describe a market square on a winter morning, before the stalls open.",)),
    Conversation("prose", ("Explain to a child of six why the sky is blue and the evening sun is red.",)),
    Conversation("prose", (f"Summarize in three sentences:\n\n{_MINUTES}",)),
    Conversation("prose", ("Write a letter that declines an invitation to a wedding, kindly and in few words.",)),
    Conversation("prose", ("Tell the history of the bicycle in five short paragraphs.",)),
    Conversation("prose", ("Write a poem of four verses about rain on a tin roof.",)),
    Conversation("prose", ("What should a person think about before adopting a dog?",)),
    Conversation("code", ("Write a Python function that returns the n-th Fibonacci number, with a docstring.",)),
    Conversation(
        "code", (f"Rename `result` to `found` in this file and print the whole file:\n\n```python\n{_INVOICES}```",)
    ),
    Conversation("code", ("Write an SQL query that lists customers with more than three orders in the last year.",)),
    Conversation("code", ("Write a shell script that renames every .jpeg file in a directory to .jpg.",)),
    Conversation("code", (f"Find what these two functions have in common:\n\n```python\n{_INVOICES}```",)),
    Conversation("code", ("Write a C program that reads numbers from standard input and prints their mean.",)),
    Conversation("code", ("Write a class in Python for a stack that also knows its smallest element.",)),
    Conversation("code", ("Write an HTML page with a form for a name, an e-mail address and a message.",)),
    Conversation("chat", (f"{_HEAD}What is the capital of Norway?",)),
    Conversation("chat", (f"{_HEAD}Who wrote Hamlet?", "Hamlet was written by William Shakespeare.", "And when?")),
    Conversation("chat", (f"{_HEAD}What is 17 times 23? Show how you get there.",)),
    Conversation(
        "chat",
        (
            f"{_HEAD}I have eggs, flour and milk.",
            "You can make pancakes, crepes or a simple pasta.",
            "Pancakes, then. How much of each?",
        ),
    ),
    Conversation("chat", (f"{_HEAD}Count from one to thirty, one number a line.",)),
    Conversation("chat", (f"{_HEAD}Which is heavier, a kilogram of iron or a kilogram of feathers?",)),
    Conversation(
        "chat",
        (
            f"{_HEAD}Translate to French: the cat sleeps on the warm roof.",
            "Le chat dort sur le toit chaud.",
            "Now the same for a dog in a cold garden.",
        ),
    ),
    Conversation("chat", (f"{_HEAD}Name the planets in order from the sun, with one fact each.",)),
    Conversation("json", ("Give a JSON object with the keys name, age and city for an invented person.",), True),
    Conversation("json", ("List three fruits as a JSON object that maps each name to its colour.",), True),
    Conversation("json", (f"Give the decisions of this meeting as a JSON object:\n\n{_MINUTES}",), True),
    Conversation("json", ("Describe a book as a JSON object with title, author, year and a list of tags.",)),
    Conversation("json", ("Write a JSON array of five objects, each with an id and a random word.",)),
    Conversation("json", ("Give an example of a package.json for a small web server.",)),
)
