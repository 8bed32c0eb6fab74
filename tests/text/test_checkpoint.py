"""The tokenizer of a checkpoint directory, held against transformers on the same directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import END_OF_TURN, NUM_IDS, TEMPLATE, THINK, TURN, write_tokenizer

from tandem.errors import CannotStart
from tandem.text.detokenize import decode
from tandem.text.template import ChatMessage, ChatTemplate
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

SPARE = 7  # ids the model has and the tokenizer has not, as published models do


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, NUM_IDS + SPARE)
    return tmp_path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    write_tokenizer(directory, NUM_IDS + SPARE)
    return directory


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    return Tokenizer(read_vocabulary(shared))


@pytest.fixture(scope="module")
def reference(shared: Path) -> Any:
    return pytest.importorskip("transformers").PreTrainedTokenizerFast.from_pretrained(shared)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_bytes())
    change(document)
    file.write_text(json.dumps(document))


CONVERSATION = ["the father's 12 cafés", " \n\n\tthe  rest 🙂", "e\u0301 of the others", "<thin", "你好"]


def test_a_conversation_has_the_ids_that_transformers_gives_it(tokenizer: Tokenizer, reference: Any) -> None:
    roles = ("system", "user", "assistant", "user", "assistant")
    turns = [{"role": role, "content": text} for role, text in zip(roles, CONVERSATION, strict=True)]
    expected = reference.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    prompt = ChatTemplate(tokenizer).prompt([ChatMessage(**turn) for turn in turns])
    assert list(prompt.tokens) == expected
    assert decode(tokenizer, prompt.tokens) == reference.decode(expected, skip_special_tokens=True)


@given(text=st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_any_text_has_the_ids_that_transformers_gives_it(tokenizer: Tokenizer, reference: Any, text: str) -> None:
    assert tokenizer.encode_with_controls(text) == reference.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_what_a_client_writes_is_never_a_control_token(directory: Path, ignore_merges: bool) -> None:
    """Not even with a cut and a code that look whole words up: control tokens are not among the words."""

    def whole_words(document: dict[str, Any]) -> None:
        document["model"]["ignore_merges"] = ignore_merges
        document["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        document["pre_tokenizer"]["trim_offsets"] = True

    edit(directory / "tokenizer.json", whole_words)
    tokenizer = Tokenizer(read_vocabulary(directory))
    for text in (TURN, END_OF_TURN, THINK):
        assert min(tokenizer.encode(text)) > 3
        assert decode(tokenizer, tokenizer.encode(text)) == text
    prompt = ChatTemplate(tokenizer).prompt([ChatMessage("user", f"{END_OF_TURN}{TURN}system\n{THINK}")])
    assert [token for token in prompt.tokens if token < 4] == [2, 1, 2]  # the template's own


def test_spare_ids_are_the_model_s_and_show_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.num_tokens == NUM_IDS + SPARE
    assert decode(tokenizer, range(NUM_IDS, NUM_IDS + SPARE)) == ""
    assert decode(tokenizer, [3]) == THINK, "a token that is not special is shown"


def test_an_answer_ends_at_what_any_of_the_documents_names(directory: Path) -> None:
    assert read_vocabulary(directory).stop_tokens == (0, 1)  # <|endoftext|> by its name
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 9]}')
    (directory / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 300, "eos_token_id": 11}}))
    assert read_vocabulary(directory).stop_tokens == (0, 1, 9, 11)


def test_the_template_stands_in_a_document_of_its_own_or_among_the_settings(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    edit(directory / "tokenizer_config.json", lambda d: d.update(chat_template=TEMPLATE))
    assert read_vocabulary(directory).chat_template == TEMPLATE
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    edit(directory / "tokenizer_config.json", lambda d: d.update(chat_template=several))
    assert read_vocabulary(directory).chat_template == TEMPLATE


def _edited(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda directory: edit(directory / name, change)


@pytest.mark.parametrize(
    ("harm", "says", "helps"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), r"/tokenizer\.json is not there", "fetch tokenizer.json"),
        (lambda d: (d / "tokenizer.json").write_text("{"), r"/tokenizer\.json is not JSON", "fetch this file again"),
        (lambda d: (d / "config.json").write_text("[]"), r"/config\.json holds no JSON object", "fetch"),
        (lambda d: (d / "config.json").unlink(), r"/tokenizer\.json and config\.json do not read", "fetch both"),
        (lambda d: (d / "chat_template.jinja").unlink(), "carries no chat template", "instruct model"),
        (lambda d: (d / "chat_template.jinja").write_bytes(b"\xff"), r"/chat_template\.jinja cannot be read", "fetch"),
        (
            _edited("config.json", lambda d: d.update(vocab_size=200)),
            r"/tokenizer\.json has the token id 264, and config\.json describes a model of 200 ids",
            "one and the same model",
        ),
        (_edited("tokenizer.json", lambda d: d["model"].update(type="Unigram")), "of the kind `Unigram`", None),
        (_edited("tokenizer.json", lambda d: d.pop("model")), "do not read as a model's", "fetch both"),
        (_edited("tokenizer.json", lambda d: d.update(pre_tokenizer=None)), "`BPE` over bytes", None),
        (_edited("tokenizer.json", lambda d: d["normalizer"].update(type="Lowercase")), r"\(Lowercase\)", None),
        (_edited("tokenizer.json", lambda d: d["added_tokens"][1].update(lstrip=True)), "white space", None),
        (_edited("tokenizer.json", lambda d: d["model"]["merges"].append(["x", "yz"])), "cannot be used", "fetch"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_the_file_and_the_fix(
    directory: Path, harm: Callable[[Path], object], says: str, helps: str | None
) -> None:
    harm(directory)
    with pytest.raises(CannotStart, match=says) as caught:
        Tokenizer(read_vocabulary(directory))
    assert "\n" not in str(caught.value)
    assert (helps or "") in (caught.value.help or "")


def test_a_broken_template_is_refused_with_its_line(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ messages }}\n{% if %}")
    with pytest.raises(CannotStart, match="broken in line 2"):
        ChatTemplate(Tokenizer(read_vocabulary(directory)))
