"""The documents as types: strict, frozen, no key without a meaning. pydantic's only door, with `settings`.

Every default and every description is written here, once: `tandem schema`, `docs/configuration.md` and the command
line read them from the models. A key left out of the appliance takes the profile's or the residency document's word;
such keys are optional here and say so in their description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tandem.config.caching import Caches
from tandem.config.conducting import Conductor
from tandem.config.quantities import KnownBy, Size, Time, exact_duration, exact_size
from tandem.config.section import Device, Rows, Section, Switched, Word
from tandem.contract import plan
from tandem.units import Bytes, Duration

_ROUTING: Final = plan.Routing()
_MODEL: Final = (
    "Its file or directory, relative to this document or absolute; or where to find it, as in a profile's "
    "`weights.source`."
)


class Figure(Section):
    """A size and how it is known."""

    size: Size = Field(description="How much.")
    basis: KnownBy = Field(description="How it is known: measured, arithmetic, estimate or configured.")
    why: str = Field(default="", description="Where the figure comes from, printed beside it.")


# --- appliance.yaml ---------------------------------------------------------------------------------------------


class Slots(Section):
    """How many sequences are held over the one copy of the weights."""

    renamed = {
        "parallel": "`count` is the number of slots",
        "num_slots": "`count` is the number of slots",
        "side_max_len": "`side_window` is a side slot's window",
        "side_graphs": "`graphs` says whether side slots capture verify graphs",
        "side_slot_const_gb": "`side_constant` takes a size with its unit",
        "window": "slot 0 has the profile's full window; `side_window` is a side slot's",
    }
    count: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None, description="Slots: slot 0 with the full window, the others side slots. Default: the profile's."
    )
    side_window: Rows | None = Field(default=None, description="Rows a side slot can hold. Default: the profile's.")
    graphs: bool | None = Field(
        default=None,
        description="Capture verify graphs for side slots (devices that have them). Default: the profile's.",
    )
    side_constant: Size | None = Field(
        default=None,
        description="What a side slot takes beside its rows, when you have measured it. Default: the profile's figure.",
    )


class Routing(Section):
    """Which slot a request gets, and how long it waits for the one that holds its conversation. The switches bring back
    an older rule each, to compare."""

    renamed = {
        "continue": "it is `continues`",
        "conv": "it is `past_head`",
        "home": "`home_wait: 0s` never waits for the slot that holds a conversation",
    }
    continues: Literal["client", "resident"] = Field(
        default=_ROUTING.continues,
        description="What a prompt is compared with to tell that it continues a slot's conversation: the prompt served "
        "there as the client's own messages render it, or only the rows that lie there.",
    )
    past_head: bool = Field(
        default=_ROUTING.past_head,
        description="Only what is shared past the end of the first user message, of a turn that has ended, is a "
        "continuation: system prompt and tools are the same in every chat of a client.",
    )
    guests: bool = Field(
        default=_ROUTING.guests,
        description="A short request beside a long conversation goes to a side slot, or the conversation's rows are "
        "put aside for it.",
    )
    guest_max: Annotated[int, Field(ge=0)] = Field(
        default=_ROUTING.guest_max, description="Tokens of the longest prompt that is a guest."
    )
    new_first: bool = Field(
        default=_ROUTING.new_first,
        description="A new conversation takes a side slot first while slot 0 holds one that no side slot could.",
    )
    carry: bool = Field(
        default=_ROUTING.carry,
        description="Rows of a conversation are copied from the slot that holds them into the one that continues it.",
    )
    slot0_wait: Time = Field(
        default=Duration(_ROUTING.slot0_wait),
        description="How long a request waits for slot 0, which holds its conversation or brings it back, before a "
        "free side slot takes it.",
    )
    home_wait: Time = Field(
        default=Duration(_ROUTING.home_wait),
        description="How long it waits for the side slot that holds its conversation.",
    )
    own_work_wait: Time = Field(
        default=Duration(_ROUTING.own_work_wait),
        description="How long it waits for the appliance's own work to give slot 0 back before a side slot takes it.",
    )
    side_min_room: Annotated[int, Field(ge=1)] = Field(
        default=_ROUTING.side_min_room,
        description="A side slot takes a request when it leaves this many tokens to write, or all that are asked for; "
        "`max_tokens` is then cut to its room.",
    )


class Memory(Section):
    """What stays free, and when KV rows get memory."""

    renamed = {
        "floor_gb": "`floor` takes a size with its unit, as in `15 GiB`",
        "hard_floor_gb": "`hard_floor` takes a size with its unit, as in `10 GiB`",
        "min_free": "`floor` is what stays available",
    }
    floor: Size | None = Field(
        default=None, description="MemAvailable is never planned below this. Default: the residency document's."
    )
    hard_floor: Size | None = Field(
        default=None,
        description="A commit that would pass it first gives everything else back. Default: the residency document's.",
    )
    kv_pool: bool | None = Field(
        default=None, description="Give KV rows memory when they are written, not at load. Default: the profile's."
    )
    kv_margin_rows: Annotated[int, Field(ge=0, le=65_536)] = Field(
        default=256, description="Rows committed past the ones a forward writes."
    )


class Deciders(Section):
    """Small models that answer the conductor's questions."""

    count: Annotated[int, Field(ge=1, le=8)] = Field(default=1, description="How many.")
    backend: Literal["laya", "lm-score"] = Field(
        default="laya",
        description="What runs the model. `laya`: a checkpoint made to decide. `lm-score`: any small language model, "
        "whose next words are weighed.",
    )
    model: Word = Field(description=_MODEL)
    device: Device | None = Field(default=None, description="Where it runs. Default: the engine's device.")
    claim: Size | None = Field(default=None, description="Its measured size. Default: the residency document's claim.")
    may_unload: bool = Field(default=False, description="Let memory pressure unload deciders too, last of all roles.")


class Helper(Section):
    """A role of one process: the narrator or the shadow reader."""

    model: Word = Field(description=_MODEL)
    device: Device | None = Field(default=None, description="Where it runs. Default: the engine's device.")
    claim: Size | None = Field(default=None, description="Its measured size. Default: the residency document's claim.")


class ShadowReader(Helper):
    """Answers what the deciders are asked as well, and nobody hears it: it is how they are judged."""

    backend: Literal["laya", "lm-score"] = Field(default="lm-score", description="What runs the model, as of deciders.")


class Roles(Section):
    """Small helper models, each a process of its own, loaded while memory allows. Each one may be left out."""

    renamed = {
        "laya": "write `deciders` with `backend: laya`",
        "shadow": "it is `shadow_reader`",
        "decider": "it is `deciders`",
    }
    deciders: Deciders | None = Field(default=None, description="Answer the conductor's questions within 400 ms.")
    narrator: Helper | None = Field(default=None, description="Writes one status line while the model works.")
    shadow_reader: ShadowReader | None = Field(
        default=None, description="Answers the conductor's questions too, into the journal."
    )


class LimitsSection(Section):
    """How long and how much."""

    renamed = {
        "timeout": "it is `request_timeout`, `queue_timeout` or `drain_timeout`",
        "max_tokens": "it is `default_max_tokens`",
    }
    request_timeout: Annotated[Time, Field(ge=1)] = Field(
        default=Duration(600.0), description="The longest a request may take, waiting included."
    )
    queue_timeout: Time = Field(
        default=Duration(120.0),
        description="A request that is not streamed waits no longer than this before it starts.",
    )
    drain_timeout: Time = Field(
        default=Duration(30.0), description="Running requests may finish for this long at a stop."
    )
    max_queue: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=64, description="Requests that may wait; the next one is told to come back later."
    )
    max_body: Annotated[Size, Field(ge=1024)] = Field(default=Bytes(8 << 20), description="The largest HTTP request.")
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="Tokens to write when a client names no limit; cut to the room of the slot."
    )
    keepalive: Annotated[Time, Field(ge=0.5)] = Field(
        default=Duration(5.0), description="After this much silence a stream carries a comment line."
    )
    per_key_running: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Requests that one API key may have here at once. Default: as many as there is room for.",
    )
    per_key_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Requests that one API key may send within a minute. Default: any number."
    )


class Listen(Section):
    """Where the API answers, and to whom."""

    renamed = {"bind": "it is `host`", "address": "it is `host` and `port`", "cors": "it is `cors_origins`"}
    host: Word = Field(default="127.0.0.1", description="Address to bind; `0.0.0.0` for every interface.")
    port: Annotated[int, Field(ge=1, le=65_535)] = Field(default=8080, description="Port to bind.")
    cors_origins: tuple[Word, ...] = Field(default=(), description="Web pages that may call the API from a browser.")
    allowed_hosts: tuple[Word, ...] = Field(
        default=(),
        description="Further names the `Host` header may carry; loopback names and `host` are always allowed.",
    )


# How the requests of Open WebUI (0.12 and before) and opencode for titles, tags, follow-ups and the like begin.
TASKS: Final = (
    "### Task:\nGenerate a concise title",
    "### Task:\nGenerate a concise, 3-5 word title",
    "### Task:\nGenerate 1-3 broad tags",
    "### Task:\nPredict 3-5 useful messages this user might",
    "### Task:\nSuggest 3-5 relevant follow-up",
    "### Task:\nAnalyze the chat history to determine the necessity of generating search queries",
    "### Task:\nGenerate a detailed prompt for",
    "### Task:\nYou are an autocompletion system",
    "Your task is to reflect the speaker's likely facial expression through a fitting emoji",
    "You are a title generator",
    "Generate a title for this conversation",
)


class Api(Section):
    """What clients are told beside their answers."""

    status: bool = Field(
        default=True,
        description="Lines about what goes on before an answer begins, in streams, for programs that show them.",
    )
    reasoning: Literal["reasoning_content", "reasoning", "both", "tags", "none"] = Field(
        default="reasoning_content",
        description="Where a chat's thinking stands: in a field of this name, in both, in the text with its tags, or "
        "nowhere.",
    )
    cache_scope: Literal["key", "appliance"] = Field(
        default="key",
        description="Who may find rows of a prompt that was read before: requests of the same API key, or all. Answers "
        "are the same; how fast they come tells the others what was asked.",
    )
    tasks: tuple[Word, ...] = Field(
        default=TASKS,
        description="Beginnings of a system message, or of the last user messages, by which a task beside a "
        "conversation is known: a title, tags, further questions. Tasks disturb no conversation. The header `X-Task` "
        "goes before.",
    )


class Keys(Section):
    """Where API keys are read, one `name:key` a line. Keys never stand in a document. Neither set: the API is open."""

    remark = "a key never stands in a document: `file` names a file, `variable` an environment variable"
    file: Word | None = Field(default=None, description="A file with one `name:key` a line.")
    variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)] | None = Field(
        default=None, description="The name of an environment variable that holds such lines."
    )
    admin: tuple[Word, ...] = Field(
        default=(), description="Names of keys that also open what shows every client's requests (`/slots`)."
    )
    metrics_only: tuple[Word, ...] = Field(
        default=(), description="Names of keys that open `/metrics` and nothing else, for a program that collects them."
    )


class Ledger(Section):
    """One row a request: counts and timings, never text."""

    retention: Annotated[Time, Field(ge=86400)] = Field(
        default=Duration(90 * 86400.0), description="Rows older than this are deleted, in whole days."
    )


class Engine(Section):
    """The process that owns the big model."""

    renamed = {"dtype": "it is `compute`", "kind": "it is `backend`", "num_threads": "it is `threads`"}
    backend: Literal["native", "vllm"] = Field(default="native", description="What runs the big model.")
    compute: Word | None = Field(default=None, description="The number format it computes in. Default: the profile's.")
    device: Device | None = Field(default=None, description="Where it runs. Default: the profile's.")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="CPU threads of one forward. Default: every CPU of the box."
    )
    chunk: Annotated[int, Field(ge=16, le=65_536)] | None = Field(
        default=None, description="Rows of one prefill piece. Default: the profile's."
    )
    end_loops: bool | None = Field(
        default=None,
        description="End an answer that repeats itself without end, also where the request does not say so. "
        "Default: the profile's.",
    )


class SamplingSection(Section):
    """What a request gets when it names nothing. Each key left out takes the profile's word, then the neutral value."""

    temperature: Annotated[float, Field(ge=0, le=5)] | None = Field(
        default=None, description="0 is greedy; neutral: 1."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="Neutral: 1.")
    top_k: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Neutral: 0, all candidates.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="Neutral: 0.")
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = Field(default=None, description="Neutral: 1.")


class Lookup(Switched):
    """Guesses from text seen before: the request's own, and a store of token ids, never of text."""

    renamed = {
        "store": "`scope: request` stores nothing",
        "path": "the store lies in `draft` under the `state` directory",
    }
    enabled: bool | None = Field(default=None, description="Neutral: on. `lookup: off` is short for it.")
    scope: Literal["request", "outputs", "all"] | None = Field(
        default=None,
        description="What the store learns: nothing, what was written, or prompts as well. Neutral: `outputs`.",
    )
    size: Annotated[Size, Field(ge=1 << 20)] | None = Field(
        default=None, description="Memory the store and its index may take; the oldest is forgotten. Neutral: 64 MiB."
    )
    readonly: bool | None = Field(default=None, description="The store answers and learns nothing. Neutral: off.")
    corpus: Word | None = Field(
        default=None,
        description="A text file that is read at start; relative to the appliance's document, or absolute.",
    )


class DraftModel(Switched):
    """A smaller model with the same tokenizer that guesses."""

    enabled: bool | None = Field(default=None, description="Neutral: on where `weights` are named.")
    weights: Annotated[str, Field(pattern=r"^(package|path|hub):.+$")] | None = Field(
        default=None, description="Where its files lie, as in a profile's `weights.source`; they are not fetched."
    )
    compute: Word | None = Field(default=None, description="The number format it computes in. Neutral: the engine's.")
    in_memory: Size | None = Field(default=None, description="What it takes, its rows of all slots included.")


class Draft(Switched):
    """Guesses of what comes next, checked beside what is written anyway: they change when text arrives, never what it
    says. Each key left out takes the profile's word, then the neutral value."""

    renamed = {"num_nodes": "it is `nodes`", "ngram": "it is `lookup`", "speculative": "it is `enabled`"}
    enabled: bool | None = Field(
        default=None, description="Neutral: on. `draft: off` is short for it; then a round writes one token a slot."
    )
    nodes: Annotated[int, Field(ge=1, le=63)] | None = Field(
        default=None, description="The most guesses a slot brings to a round. Neutral: 15."
    )
    lookup: Lookup = Field(default=Lookup(), description="Guesses from text seen before.")
    mtp: bool | None = Field(
        default=None, description="Guesses of the model's own head for them, where its weights carry one. Neutral: on."
    )
    model: DraftModel = Field(default=DraftModel(), description="Guesses of a smaller model.")


class Downloads(Section):
    """Where `tandem pull` gets weights whose source is `hub:`."""

    endpoint: Annotated[str, Field(pattern=r"^https?://\S+$")] = Field(
        default="https://huggingface.co",
        description="An `http://` or `https://` address that answers `/OWNER/NAME/resolve/REVISION/FILE`.",
    )
    token_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)] | None = Field(
        default=None, description="The name of an environment variable that holds the token gated models ask for."
    )
    token_file: Word | None = Field(default=None, description="A file that holds it instead.")


class Appliance(Section):
    """The one document a user edits."""

    renamed = {
        "model": "`profile` names the model and how it is served",
        "server": "`listen` has `host` and `port`",
        "port": "it is `listen.port`",
        "host": "it is `listen.host`",
        "api_key": "`keys.file` or `keys.variable` say where keys are read; a key never stands in a document",
        "api_keys": "`keys.file` or `keys.variable` say where keys are read; a key never stands in a document",
        "parallel": "it is `slots.count`",
        "logs": "logs are kept in `logs` under the `state` directory",
    }
    profile: Word = Field(default="smollm2-135m", description="Name of a document in `profiles/`, or a path to one.")
    residency: Word = Field(default="laptop", description="Name of a document in `residency/`, or a path to one.")
    state: Word = Field(
        default=".tandem",
        description="Directory for downloads, ledger and logs; relative to this document, or absolute.",
    )
    slots: Slots = Field(default=Slots(), description="How many sequences are held at once.")
    routing: Routing = Field(default=Routing(), description="Which slot a request gets, and how long it waits for it.")
    memory: Memory = Field(default=Memory(), description="What stays free, and when rows get memory.")
    roles: Roles = Field(default=Roles(), description="Small helper models beside the engine.")
    conductor: Conductor = Field(default=Conductor(), description="Shapes requests before the model sees them.")
    limits: LimitsSection = Field(default=LimitsSection(), description="How long and how much.")
    listen: Listen = Field(default=Listen(), description="Where the API answers, and to whom.")
    caches: Caches = Field(default=Caches(), description="What is kept of conversations: nothing is read twice.")
    api: Api = Field(default=Api(), description="What clients are told beside their answers.")
    keys: Keys = Field(default=Keys(), description="Where API keys are read.")
    ledger: Ledger = Field(default=Ledger(), description="One row a request, never text.")
    engine: Engine = Field(default=Engine(), description="The process that owns the big model.")
    sampling: SamplingSection = Field(default=SamplingSection(), description="What an unspoken request gets.")
    draft: Draft = Field(default=Draft(), description="Guesses that make text arrive sooner.")
    downloads: Downloads = Field(default=Downloads(), description="Where weights come from.")


# --- profiles/*.yaml --------------------------------------------------------------------------------------------


class Weights(Section):
    """The model's files, and what they take once loaded."""

    source: Annotated[str, Field(pattern=r"^(package|path|hub):.+$")] = Field(
        description="`package:MODULE/FILE`, `path:FILE`, `path:DIRECTORY`, `hub:OWNER/NAME@COMMIT` (a directory) or "
        "`hub:OWNER/NAME/FILE@REVISION`."
    )
    distribution: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+$")] | None = Field(
        default=None, description="The pinned distribution that carries a `package:` source, as `NAME==VERSION`."
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="Of the file, 64 hexadecimal digits; required for a `hub:` file, not for a directory."
    )
    size: Size | None = Field(default=None, description="Of the file, not for a directory.")
    in_memory: dict[str, Figure] = Field(
        description="What the weights take once loaded, by the number format they are computed in."
    )


class Kv(Section):
    """What one token's rows take: attention layers x (K + V + indexer key), drafters, rotary."""

    layers: Annotated[int, Field(ge=0)] = Field(description="Attention layers that keep rows.")
    heads: Annotated[int, Field(ge=1)] = Field(description="KV heads of one layer.")
    head_dim: Annotated[int, Field(ge=1)] = Field(description="Elements of one head.")
    element: Size | None = Field(
        default=None, description="Bytes of one element. Default: 4 B where the engine computes in float32, else 2 B."
    )
    indexer_key: Annotated[int, Field(ge=0)] = Field(default=0, description="Elements of one layer's indexer key.")
    drafters: tuple[Size, ...] = Field(default=(), description="What each drafter keeps a token.")
    rotary: Size = Field(default=Bytes(0), description="What the rotary table keeps a token.")


class SlotFigures(Section):
    """What a slot takes beside its rows: recurrent state, workspace, verify graphs."""

    graphs: Figure = Field(description="With verify graphs.")
    plain: Figure = Field(description="Without.")


class Serving(Section):
    """How this model is served unless the appliance says otherwise."""

    compute: Word = Field(description="The number format it computes in.")
    device: Device = Field(default="cpu", description="Where it runs.")
    chunk: Annotated[int, Field(ge=16, le=65_536)] = Field(default=256, description="Rows of one prefill piece.")
    slots: Annotated[int, Field(ge=1, le=16)] = Field(default=1, description="Slots.")
    side_window: Rows = Field(description="Rows a side slot can hold.")
    graphs: bool = Field(default=False, description="Verify graphs on side slots.")
    kv_pool: bool = Field(default=False, description="Rows get memory when they are written.")
    end_loops: bool = Field(default=False, description="An answer that repeats itself without end is ended.")


class Fact(Section):
    """Something known about this model on this hardware, printed by `tandem plan`; nothing is computed from it."""

    what: Word = Field(description="What was looked at.")
    value: Word = Field(description="What was seen, with its unit.")
    basis: KnownBy = Field(description="How it is known.")


class Profile(Section):
    """A model and how it is served on a class of hardware. A name that begins with `_` is only there to be extended."""

    extends: Word | None = Field(default=None, description="The profile this one is written over; keys here win.")
    description: str = Field(default="", description="One line for people.")
    model: Word = Field(description="The id clients see.")
    aliases: tuple[Word, ...] = Field(default=(), description="Further ids that mean this model.")
    family: Literal["llama", "qwen3", "qwen35", "flashnext"] = Field(description="The model code that runs it.")
    calls: Literal["hermes", "qwen-xml", "llama", "mistral", "json"] | None = Field(
        default=None, description="How the model writes calls of tools. Left out: as its chat template shows."
    )
    window: Rows = Field(description="Rows slot 0 can hold.")
    weights: Weights = Field(description="The model's files.")
    kv: Kv = Field(description="What one token's rows take.")
    slot: SlotFigures = Field(description="What a slot takes beside its rows.")
    runtime: Figure = Field(description="What the engine's process takes before any weight is loaded.")
    workspace: Figure = Field(description="The most one prefill chunk takes while it runs.")
    serving: Serving = Field(description="How this model is served unless the appliance says otherwise.")
    sampling: SamplingSection = Field(default=SamplingSection(), description="What an unspoken request gets.")
    draft: Draft = Field(default=Draft(), description="Guesses that make text arrive sooner.")
    facts: tuple[Fact, ...] = Field(default=(), description="What is known about it, with how it is known.")


# --- residency/*.yaml -------------------------------------------------------------------------------------------


class BoxSection(Section):
    """The machine, for plans made elsewhere (`tandem plan --box`)."""

    total: Size = Field(description="MemTotal.")
    available: Size = Field(description="MemAvailable before the appliance starts.")
    cpus: Annotated[int, Field(ge=1)] = Field(description="CPUs the appliance may use.")


class EngineOnBox(Section):
    """What one profile's engine was seen to hold on this box, side slots not counted (they are added)."""

    peak: Figure = Field(description="The most it may grow to: the declared peak.")
    loaded: Figure | None = Field(default=None, description="What it holds once loaded and idle. Default: the peak.")


class Claims(Section):
    """The roles' sizes on this box."""

    decider: Figure | None = Field(default=None, description="Of one decider.")
    narrator: Figure | None = Field(default=None, description="Of the narrator.")
    shadow_reader: Figure | None = Field(default=None, description="Of the shadow reader.")


class Reload(Section):
    """When a role that was unloaded for memory may come back."""

    margin: Size = Field(default=Bytes(4 << 30), description="Headroom above floor and claim that must be there.")
    after: Time = Field(default=Duration(60.0), description="How long it must have been there.")
    thrash: Time = Field(default=Duration(600.0), description="Unloaded again sooner than this: the next wait doubles.")
    max_hold: Time = Field(default=Duration(3600.0), description="The longest wait.")


class Residency(Section):
    """Which small models may live beside the engine on one box."""

    description: str = Field(default="", description="One line for people.")
    box: BoxSection | None = Field(default=None, description="The machine, for plans made elsewhere.")
    floor: Size = Field(description="MemAvailable is never planned below this.")
    hard_floor: Size = Field(description="A commit that would pass it first gives everything else back.")
    margin: Size = Field(description="What is kept above the floor when a role asks to load.")
    engines: dict[str, EngineOnBox] = Field(
        default_factory=dict, description="What each profile's engine holds on this box, by profile name."
    )
    claims: Claims = Field(default=Claims(), description="The roles' sizes on this box.")
    reload: Reload = Field(default=Reload(), description="When an unloaded role may come back.")


KINDS: Final[Mapping[str, type[Section]]] = {"appliance": Appliance, "profile": Profile, "residency": Residency}


def json_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of document, for editors. `extends` may supply a profile's required keys."""
    schema = KINDS[kind].model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    sections = (schema, *schema["$defs"].values())
    for section in sections if kind == "profile" else ():
        if section["title"] not in ("Figure", "Fact"):
            section.pop("required", None)
    for section in sections:
        for field in section.get("properties", {}).values():
            _write_default(field)
    return schema


def _write_default(field: dict[str, Any]) -> None:
    """A default as a person would write it: `8 MiB`, not 8388608; a section's and `null` say nothing to anyone."""
    default = field.get("default")
    if default is None or isinstance(default, dict):
        field.pop("default", None)
    elif field.get("title") == "size":
        field["default"] = exact_size(default)
    elif field.get("title") == "duration":
        field["default"] = exact_duration(default)
