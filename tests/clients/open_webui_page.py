"""What a person does in Open WebUI's pages. For scripts that run where Playwright is installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, sync_playwright

EMAIL, PASSWORD = "anna@example.org", "a-long-passw0rd"
MODEL = "smollm2-135m"


@contextmanager
def two_tabs() -> Iterator[tuple[Page, Page]]:
    """Of one person who has signed in at `argv[1]`, each with a chat to begin; Chromium is `argv[2]`."""
    url, chromium = sys.argv[1:]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        person = browser.new_context()
        person.set_default_timeout(90_000)
        account = {"name": "Anna", "email": EMAIL, "password": PASSWORD}
        assert person.request.post(f"{url}/api/v1/auths/signup", data=account).ok
        person.clear_cookies()
        page = person.new_page()
        page.goto(f"{url}/auth", wait_until="domcontentloaded")
        page.fill("input[type=email]", EMAIL)
        page.fill("input[type=password]", PASSWORD)
        page.keyboard.press("Enter")
        page.get_by_role("button", name=re.compile("Let.s Go")).click()  # the news of this version
        tabs = person.new_page(), person.new_page()
        for tab in tabs:
            tab.goto(f"{url}/?models={MODEL}", wait_until="domcontentloaded")
            tab.wait_for_selector("#chat-input")
        yield tabs
        browser.close()


def ask(tab: Page, question: str) -> None:
    tab.bring_to_front()
    tab.click("#chat-input")
    tab.keyboard.insert_text(question)
    tab.keyboard.press("Enter")


def sees(tab: Page, text: str) -> bool:
    tab.get_by_text(text).first.wait_for()
    return True


def answers(tab: Page) -> Locator:
    """Those that are written to their end: each has a button to have it written anew."""
    return tab.get_by_role("button", name="Regenerate")
