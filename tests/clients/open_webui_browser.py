"""A person in a browser at the Open WebUI at `argv[1]`: signs in, asks in two tabs at once, sees what goes on and the
answers. Prints what was seen, as JSON. Run by `test_open_webui`; Chromium is `argv[2]`."""

import json
import re
import sys

from playwright.sync_api import Page, sync_playwright

URL, CHROMIUM = sys.argv[1:]
EMAIL, PASSWORD = "anna@example.org", "a-long-passw0rd"
MODEL = "smollm2-135m"


def ask(tab: Page, question: str) -> None:
    tab.bring_to_front()
    tab.click("#chat-input")
    tab.keyboard.type(question)
    tab.keyboard.press("Enter")


def sees(tab: Page, text: str) -> bool:
    tab.get_by_text(text).first.wait_for()
    return True


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    person = browser.new_context()
    person.set_default_timeout(40_000)
    account = {"name": "Anna", "email": EMAIL, "password": PASSWORD}
    assert person.request.post(f"{URL}/api/v1/auths/signup", data=account).ok
    person.clear_cookies()
    page = person.new_page()
    page.goto(f"{URL}/auth", wait_until="domcontentloaded")
    page.fill("input[type=email]", EMAIL)
    page.fill("input[type=password]", PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("button", name=re.compile("Let.s Go")).click()  # the news of this version
    tabs = {name: person.new_page() for name in ("first", "second")}
    for tab in tabs.values():
        tab.goto(f"{URL}/?models={MODEL}", wait_until="domcontentloaded")
        tab.wait_for_selector("#chat-input")
    for name, tab in tabs.items():
        ask(tab, f"hello from the {name} tab")
    told = {
        "status": [sees(tab, "1 request is ahead") for tab in tabs.values()],
        "answer": [sees(tab, f"The answer to the {name} tab") for name, tab in tabs.items()],
        "thinking": [sees(tab, "Thought for") for tab in tabs.values()],
        "follow-up": [sees(tab, "Why is that?") for tab in tabs.values()],
        "title": [sees(tab, "Two rivers") for tab in tabs.values()],
    }
    browser.close()
print(json.dumps(told))
