"""The routes of other APIs. Handlers only choose; see `routes`."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, TypeVar

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.types import ASGIApp
from msgspec import Struct

from tandem.gateway import ollama_models, statuses, tokens
from tandem.gateway.anthropic import Messages
from tandem.gateway.anthropic_request import CountRequest
from tandem.gateway.asgi import read_body
from tandem.gateway.envelopes import MessagesError, OllamaError
from tandem.gateway.errors import ApiError
from tandem.gateway.exchange import Exchange
from tandem.gateway.ollama import OllamaChat, OllamaGenerate
from tandem.gateway.openai import ChatRequest
from tandem.gateway.props import Props, SlotShown, props_of, slots_of
from tandem.gateway.reading import read
from tandem.gateway.responses import Responses

AnyRequest: TypeAlias = Request[Any, Any, State]
Body = TypeVar("Body", bound=Struct)


async def body_of(request: AnyRequest, state: State, kind: type[Body]) -> Body:
    """Raises `ApiError`."""
    limit = state.service.live.limits.max_body
    return read(kind, await read_body(request.scope, request.receive, limit))[0]


@post("/v1/responses", status_code=200, responses=statuses.generation())
async def responses(state: State) -> ASGIApp:
    """Answer a conversation in items. Nothing is kept: each request brings the whole of it."""
    return Exchange(state.service, Responses())


@post("/v1/messages", status_code=200, responses=statuses.generation(MessagesError))
async def messages(state: State) -> ASGIApp:
    """Answer a conversation in Anthropic's words."""
    return Exchange(state.service, Messages())


@post("/v1/messages/count_tokens", status_code=200, responses=statuses.generation(MessagesError))
async def count_tokens(request: AnyRequest, state: State) -> tokens.CountedTokens:
    """How many tokens the prompt of such a request has."""
    wanted = await body_of(request, state, CountRequest)
    state.service.check_model(wanted.model)
    return await tokens.count_tokens(wanted, state.service.prompts)


_NO_EMBEDDER: Final = (
    "no embedder is declared: this appliance's profile (`profile` in appliance.yaml) names one model, and it writes; "
    "let the client take its embeddings from another server"
)


@post("/v1/embeddings", status_code=400, responses=statuses.closed() | statuses.errors(_400="No embedder is declared"))
async def embeddings() -> None:
    """Refused: the model that is served writes, and no other is declared."""
    raise ApiError(400, "no_embedder", _NO_EMBEDDER)


@post(
    ["/api/embed", "/api/embeddings"],
    status_code=400,
    responses=statuses.closed(OllamaError) | statuses.errors(OllamaError, _400="No embedder is declared"),
)
async def ollama_embed() -> None:
    """Refused, as `/v1/embeddings` is."""
    raise ApiError(400, "no_embedder", _NO_EMBEDDER)


@get("/api/version", responses=statuses.closed(OllamaError))
async def ollama_version() -> ollama_models.OllamaVersion:
    """The release of Ollama whose words are spoken."""
    return ollama_models.OllamaVersion(ollama_models.SPEAKS)


@get("/api/tags", responses=statuses.closed(OllamaError))
async def ollama_tags(state: State) -> ollama_models.OllamaTags:
    """The one model."""
    return ollama_models.tags_of(state.service)


@get("/api/ps", responses=statuses.closed(OllamaError))
async def ollama_ps(state: State) -> ollama_models.OllamaLoaded:
    """The one model, while it can answer."""
    return ollama_models.loaded_of(state.service)


@post("/api/show", status_code=200, responses=statuses.generation(OllamaError))
async def ollama_show(request: AnyRequest, state: State) -> ollama_models.OllamaShown:
    """What the model is, and its window."""
    return ollama_models.shown(await body_of(request, state, ollama_models.ShowRequest), state.service)


@post("/api/chat", status_code=200, responses=statuses.generation(OllamaError))
async def ollama_chat(state: State) -> ASGIApp:
    """Answer a conversation in Ollama's words."""
    return Exchange(state.service, OllamaChat(state.service.plan.gateway.model))


@post("/api/generate", status_code=200, responses=statuses.generation(OllamaError))
async def ollama_generate(state: State) -> ASGIApp:
    """Answer one message, or continue a bare prompt."""
    return Exchange(state.service, OllamaGenerate(state.service.plan.gateway.model))


@post("/tokenize", status_code=200, responses=statuses.reading())
async def tokenize(request: AnyRequest, state: State) -> tokens.Tokenized:
    """The token ids of a text or of a conversation."""
    return await tokens.tokenize(await body_of(request, state, tokens.TokenizeRequest), state.service.prompts)


@post("/detokenize", status_code=200, responses=statuses.reading())
async def detokenize(request: AnyRequest, state: State) -> tokens.Detokenized:
    """The text of token ids."""
    wanted = await body_of(request, state, tokens.DetokenizeRequest)
    return tokens.detokenize(wanted, state.service.prompts.tokenizer)


@post("/apply-template", status_code=200, responses=statuses.reading())
async def apply_template(request: AnyRequest, state: State) -> tokens.AppliedTemplate:
    """The text that the model would read for a conversation."""
    return await tokens.apply_template(await body_of(request, state, ChatRequest), state.service.prompts)


@get("/props", responses=statuses.closed())
async def props(state: State) -> Props:
    """The model, its template, and what a request gets that names nothing."""
    return props_of(state.service)


@get("/slots", responses=statuses.closed() | statuses.errors(_503="There is no engine now"))
async def slots(state: State) -> list[SlotShown]:
    """What each slot does; never what is in it."""
    return await slots_of(state.service)


DOORS: Final = (
    responses,
    messages,
    count_tokens,
    embeddings,
    ollama_embed,
    ollama_version,
    ollama_tags,
    ollama_ps,
    ollama_show,
    ollama_chat,
    ollama_generate,
    tokenize,
    detokenize,
    apply_template,
    props,
    slots,
)
