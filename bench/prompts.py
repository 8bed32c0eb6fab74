"""What the clients ask: distinct prompts of about 50 tokens that a small model answers at length."""

from __future__ import annotations

from random import Random

TOPICS = (
    "a sailing boat", "a bicycle", "a water mill", "a lighthouse", "a bakery oven", "a paper kite", "a pendulum clock",
    "a post office", "a vegetable garden", "a suspension bridge", "a pinhole camera", "a public library", "a bee hive",
    "a piano", "a canal lock", "a weather station", "a compost heap", "a fire brigade", "a telescope",
    "a beaver dam", "a coral reef", "a railway signal", "a cheese dairy", "a wind turbine", "a coin mint", "a glacier",
    "a steam engine", "a sundial", "a hot air balloon", "a printing press", "a salt marsh", "a fishing harbour",
    "a market hall", "a thermometer", "a loom", "a glass furnace", "a tide pool", "a cable car", "a seed bank",
    "a crossword puzzle", "a string quartet", "a mountain hut", "a city map", "a hospital kitchen", "a ferry line",
    "a chess club", "a clay pot", "a sewing machine",
)  # fmt: skip


def prompt(topic: str) -> str:
    return (
        f"Explain to a class of ten year old pupils how {topic} works and why people need it. "
        "Write several long paragraphs, give three examples from daily life, and end with a question for the pupils."
    )


def long_prompt(topic: str, entries: int = 35) -> str:
    """About 1,500 tokens that nothing asked before begins with: a diary about `topic`, and a question."""
    drawn = Random(topic)
    days = [
        f"Day {day}: {drawn.choice(_PEOPLE)} {drawn.choice(_DEEDS)} {drawn.choice(_PLACES)}; "
        f"{drawn.randint(2, 400)} visitors came to see {topic}, {drawn.choice(_WEATHERS)}, and "
        f"{drawn.randint(10, 99)} crowns were paid."
        for day in drawn.sample(range(1, 366), entries)
    ]
    return "\n".join([f"{topic.capitalize()}, a diary.", *days, "Tell in your own words what this diary is about."])


_PEOPLE = ("the keeper", "Anna", "the old teacher", "Mr. Holm", "a child", "the mayor", "nobody", "the baker")
_DEEDS = ("mended the door", "sang a song", "painted a wall", "lost a key", "told a story", "counted the coins")
_PLACES = ("behind the station", "in the north hall", "near the river", "on the roof", "at the second gate")
_WEATHERS = ("it rained", "the sun was out", "snow lay on the road", "a warm wind blew", "fog hid the bridge")
