"""What the clients ask: distinct prompts of about 50 tokens that a small model answers at length."""

from __future__ import annotations

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
