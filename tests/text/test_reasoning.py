"""Thinking as templates speak of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_tokenizer import write_tokenizer

from tandem.contract.messages import Reasoning
from tandem.text.reasoning import find_reasoning, opens_thinking
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

# As templates of thinking models do: earlier thinking is cut from the history; the prompt for an answer may open a
# block, or hold an empty one.
THINKING = """
{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}PROMPT{% endif %}"""
OPENED, CLOSED, LEFT = "{{ '<think>\\n' }}", "{{ '<think>\\n\\n</think>\\n\\n' }}", "{# <think> #}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Its `<think>` is one token, its `</think>` several."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tokenizer(directory, vocab_size=512)
    return Tokenizer(read_vocabulary(directory))


def template_of(tokenizer: Tokenizer, prompt: str) -> Tokenizer:
    return Tokenizer(replace(tokenizer.vocabulary, chat_template=THINKING.replace("PROMPT", prompt)))


def test_a_template_that_does_not_speak_of_thinking_has_none(tokenizer: Tokenizer) -> None:
    assert find_reasoning(tokenizer) is None
    assert ChatTemplate(tokenizer).prompt([ChatMessage("user", "<think>")]).reasoning is None


@pytest.mark.parametrize(("prompt", "is_begun"), [(OPENED, True), (CLOSED, False), (LEFT, False)])
def test_whether_the_prompt_begins_the_block(tiny: Tokenizer, prompt: str, is_begun: bool) -> None:
    tokenizer = template_of(tiny, prompt)
    marks = Reasoning((3,), tuple(tokenizer.encode("</think>")), begun=is_begun)
    assert len(marks.close) > 1
    for content in ("hi", "<think>", "</think> <think>"):
        assert ChatTemplate(tokenizer).prompt([ChatMessage("user", content)]).reasoning == marks


def test_only_the_last_mark_counts() -> None:
    marks = Reasoning((1, 2), (3,))
    prompts = ([], [1], [1, 2], [1, 2, 3], [3, 1, 2], [1, 2, 3, 1, 2, 9])
    assert [opens_thinking(tokens, marks) for tokens in prompts] == [False, False, True, False, True, True]


def test_a_template_may_be_told_that_nothing_is_to_be_thought(tiny: Tokenizer) -> None:
    tokenizer = template_of(
        tiny, "{% if enable_thinking is defined and not enable_thinking %}" + CLOSED + "{% endif %}"
    )
    template, messages = ChatTemplate(tokenizer), [ChatMessage("user", "hi")]
    long, short = template.prompt(messages), template.prompt(messages, thinks=False)
    assert short.tokens[: len(long.tokens)] == long.tokens
    assert short.tokens[len(long.tokens) :] == tuple(tokenizer.encode_with_controls("<think>\n\n</think>\n\n"))
    assert short.marks == long.marks
