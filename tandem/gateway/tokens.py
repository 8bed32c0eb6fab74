"""`/tokenize`, `/detokenize`, `/apply-template`, `/v1/messages/count_tokens`: what words are to the model.

The first two take and give the words of llama.cpp and of vLLM alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tandem.gateway.anthropic_request import CountRequest, to_chat
from tandem.gateway.conversation import Message
from tandem.gateway.errors import ApiError
from tandem.gateway.offer import OfferedTool
from tandem.gateway.openai import ChatRequest, TokenId
from tandem.gateway.prompts import Prompts
from tandem.text.tokenizer import Tokenizer


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """One of `content`, `prompt` and `messages`."""

    model: str | None = None
    content: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    tools: list[OfferedTool] | None = None
    add_special: bool | None = None  # the token that begins a prompt, where the model has one; llama.cpp: no
    add_special_tokens: bool | None = None  # the same; vLLM: yes
    parse_special: bool | None = None  # false: what reads like a control token is only characters
    with_pieces: bool | None = None
    return_token_strs: bool | None = None


class TokenPiece(Struct, frozen=True):
    """`piece` is the token's text, or its bytes where they are no text of their own."""

    id: int
    piece: str | list[int]


class Tokenized(Struct, frozen=True, kw_only=True):
    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


class Detokenized(Struct, frozen=True):
    """The same text under the names of both."""

    content: str
    prompt: str


class AppliedTemplate(Struct, frozen=True):
    prompt: str


class CountedTokens(Struct, frozen=True):
    input_tokens: int


async def tokenize(wanted: TokenizeRequest, prompts: Prompts) -> Tokenized:
    """Raises `ApiError` 400."""
    ids = await _ids(wanted, prompts)
    told = [TokenPiece(id, _piece(id, prompts.tokenizer)) if wanted.with_pieces else id for id in ids]
    names = [text_of_tokens([id], prompts.tokenizer) for id in ids] if wanted.return_token_strs else UNSET
    return Tokenized(tokens=told, count=len(ids), max_model_len=prompts.window, token_strs=names)


async def _ids(wanted: TokenizeRequest, prompts: Prompts) -> list[int]:
    given = [name for name in ("content", "prompt", "messages") if getattr(wanted, name) is not None]
    if len(given) != 1:
        sentence = "one of `content`, `prompt` and `messages` is tokenized"
        raise ApiError(400, "invalid_value", sentence, param=given[1] if given else "content")
    if wanted.messages is not None:
        return list((await prompts.rendered(ChatRequest(messages=wanted.messages, tools=wanted.tools))).tokens)
    text, begins = (wanted.content, False) if wanted.content is not None else (wanted.prompt or "", True)
    for wish in (wanted.add_special, wanted.add_special_tokens):
        begins = begins if wish is None else wish
    return await prompts.tokenized(text, given[0], begins, controls=wanted.parse_special is not False)


def detokenize(wanted: DetokenizeRequest, tokenizer: Tokenizer) -> Detokenized:
    """Raises `ApiError` 400 for an id that this model does not have."""
    if max(wanted.tokens, default=0) >= tokenizer.num_tokens:
        sentence = f"`tokens`: this model's token ids are 0 to {tokenizer.num_tokens - 1}"
        raise ApiError(400, "invalid_value", sentence, param="tokens")
    text = text_of_tokens(wanted.tokens, tokenizer)
    return Detokenized(text, text)


async def apply_template(wanted: ChatRequest, prompts: Prompts) -> AppliedTemplate:
    """What the model would read. Raises `ApiError` 400."""
    wanted.check()
    return AppliedTemplate(text_of_tokens((await prompts.rendered(wanted)).tokens, prompts.tokenizer))


async def count_tokens(wanted: CountRequest, prompts: Prompts) -> CountedTokens:
    """Raises `ApiError` 400."""
    return CountedTokens(len((await prompts.rendered(to_chat(wanted))).tokens))


def text_of_tokens(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Control tokens by their names; bytes that are no character read as U+FFFD."""
    return b"".join(_bytes(id, tokenizer) for id in ids).decode("utf-8", "replace")


def _bytes(id: int, tokenizer: Tokenizer) -> bytes:
    return tokenizer.bytes_of[id] or tokenizer.vocabulary.tokens[id].encode()


def _piece(id: int, tokenizer: Tokenizer) -> str | list[int]:
    piece = _bytes(id, tokenizer)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
