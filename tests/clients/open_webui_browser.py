"""A person who asks in two tabs at once, and sees what goes on, the answers, and what is made of them. Prints what was
seen, as JSON. Run by `test_open_webui`."""

import json

from open_webui_page import ask, sees, two_tabs

with two_tabs() as tabs:
    named = list(zip(("first", "second"), tabs, strict=True))
    for name, tab in named:
        ask(tab, f"hello from the {name} tab")
    told = {
        "status": [sees(tab, "1 request is ahead") for tab in tabs],
        "answer": [sees(tab, f"The answer to the {name} tab") for name, tab in named],
        "thinking": [sees(tab, "Thought for") for tab in tabs],
        "follow-up": [sees(tab, "Why is that?") for tab in tabs],
        "title": [sees(tab, "Two rivers") for tab in tabs],
    }
print(json.dumps(told))
