"""A person who pastes something long in either of two tabs, reads both answers, and asks again in the first. Prints
what was seen, as JSON. Run by `test_open_webui`."""

import json

from open_webui_page import answers, ask, sees, two_tabs

NOTES = "".join(f"On day {day} the river rose by {day * 7 % 13} fingers and fell again. " for day in range(40))

with two_tabs() as tabs:
    for tab, name in zip(tabs, ("Anna", "Bert"), strict=True):
        ask(tab, f"{name} wrote this down. {NOTES}What did {name} write about?")
    told = {"status": [sees(tab, "prompt tokens read") for tab in tabs]}
    for tab in tabs:
        tab.bring_to_front()
        answers(tab).first.wait_for()
    told["status is over"] = [not tab.get_by_text("prompt tokens read").is_visible() for tab in tabs]
    first, _ = tabs
    ask(first, "Say that again.")
    answers(first).nth(1).wait_for()
    told["second answer"] = True
print(json.dumps(told))
