"""What processes say to each other. One frozen struct a message, tagged with its own name.

Text never crosses to the engine: requests are token ids, answers are token ids. Sentences that travel here are
ours (why a request waits), never a user's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct


class Message(Struct, frozen=True, tag=True):
    """Base of everything a channel carries."""


# --- to the engine ----------------------------------------------------------------------------------------------


class Sampling(Struct, frozen=True):
    """How a request's tokens are drawn. `temperature` 0 is greedy; `seed` None takes fresh noise."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None


class Marks(Struct, frozen=True):
    """Places in the prompt that routing and caches need; token counts from the start."""

    head_end: int  # end of the first user message: what every chat of one client may share ends here
    messages_end: int  # end of the last message, before the generation prompt


class GrammarKind(StrEnum):
    """How `Grammar.text` is to be read."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema document
    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    REGEX = "regex"
    CHOICE = "choice"  # a JSON list of strings, one of which is the answer
    LARK = "lark"  # or llama.cpp's GBNF, which is translated


class Grammar(Struct, frozen=True):
    """What an answer must match, checked at every token."""

    kind: GrammarKind
    text: str
    param: str = ""  # where it stands in the client's request: what is wrong with it is named from there


class Reasoning(Struct, frozen=True):
    """How a model's thinking block is told from its answer, and how long it may get."""

    open: tuple[int, ...]  # the tokens that begin it; empty when only the prompt begins it
    close: tuple[int, ...]  # the tokens that end it
    max_tokens: int | None = None  # of thinking; then the engine writes `close` itself. None: no limit
    begun: bool = False  # the prompt has begun it; always so where `open` is empty


class Generate(Message, frozen=True):
    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    stop_tokens: tuple[int, ...]
    sampling: Sampling
    marks: Marks
    own_work: bool = False  # the appliance's own request: gives way to clients
    scope: str = ""  # requests of different scopes never share cached rows (hash of the API key)
    grammar: Grammar | None = None
    reasoning: Reasoning | None = None
    top_logprobs: int | None = None  # best candidates reported with each token, 0 to 20; None: no scores at all
    end_loops: bool | None = None  # an answer that repeats itself is ended, or only reported; None: as the plan says
    client_tokens: tuple[int, ...] | None = None  # the prompt as the client's messages alone render it; None: `tokens`
    client_head_end: int | None = None  # end of the first user message in `client_tokens`; None: as in `marks`
    conversation: str = ""  # which one, where the client says so (a hash of its header); never trusted for rows
    task: bool = False  # a client's request beside its conversation: a title, tags. No turn of a conversation follows
    anew: bool = False  # every token is read, whatever was kept of others
    keep_for: float = 0.0  # seconds from now that memory keeps what this conversation leaves, before that of others


class Cancel(Message, frozen=True):
    """The client left, or its stop string was found. Answered by `Finished` with what was generated so far."""

    id: str


class SetLive(Message, frozen=True):
    """The live part of a new plan, as JSON of `contract.plan.Live` (kept opaque here: plan imports no messages)."""

    live: bytes


class Drain(Message, frozen=True):
    """Finish what runs and what waits, refuse what comes. Undone by `Resume`."""


class Resume(Message, frozen=True):
    pass


class AskHealth(Message, frozen=True):
    """Every process with a socket answers this with `Health`."""


# --- from the engine --------------------------------------------------------------------------------------------


class RequestState(StrEnum):
    QUEUED = "queued"
    WAITING_MEMORY = "waiting_memory"
    READING = "reading"
    WRITING = "writing"


class Progress(Message, frozen=True):
    """Where a request stands, sent when it changes. `sentence` says why, with numbers, for people."""

    id: str
    state: RequestState
    done: int  # rows read, or requests ahead in the queue when queued
    total: int
    sentence: str


class Missed(Struct, frozen=True):
    """A conversation went on, and nothing of it past its head was found: where its prompt parts from what a slot held.

    The tokens around that place are for whoever runs the appliance; they are in no log and in no file.
    """

    at: int  # tokens that agree, from the start
    of: int  # tokens that the slot held; 0: no slot held anything like it
    slot: int = 0
    ours: tuple[int, ...] = ()  # of the prompt, around that place
    theirs: tuple[int, ...] = ()  # of what was held
    before: int = 0  # of both, tokens that agree


class Started(Message, frozen=True):
    """A slot was given. Sent once, before the first `Tokens`."""

    id: str
    slot: int
    reason: str  # routing's sentence
    max_tokens: int  # after it was cut to the slot's room
    cached_tokens: int
    cache_source: str  # resident | side | store | park | disk | none
    missed: Missed | None = None  # why a conversation was cold


class TokenScore(Struct, frozen=True):
    """Log-probabilities of one position in the model's own distribution: before bias, masks and temperature."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()  # the best candidates, best first; `Generate.top_logprobs` of them


class Tokens(Message, frozen=True):
    """Newly committed tokens, in order."""

    id: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()  # one a token where the request wants them


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token; it is not among the tokens
    LENGTH = "length"
    CANCELLED = "cancelled"
    LOOP = "loop"  # it repeated itself and was asked to end when it does


class Loop(Struct, frozen=True):
    """The last tokens are one run over and over."""

    period: int  # tokens of the run
    repeats: int  # times in a row


class Finished(Message, frozen=True):
    """The last message of a request that started."""

    id: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    rounds: int = 0  # that wrote its tokens
    drafted: int = 0  # guesses that were checked for it
    accepted: int = 0  # of them, the model's own choice
    reasoning_tokens: int = 0
    loop: Loop | None = None  # seen, whether or not it ended the answer
    runaway: bool = False  # it was still thinking when most of its answer's room was used up


class RefusalCode(StrEnum):
    QUEUE_FULL = "queue_full"
    TOO_LONG = "context_length_exceeded"
    DRAINING = "draining"
    QUEUE_TIMEOUT = "queue_timeout"
    MEMORY_TIMEOUT = "memory_wait_timeout"
    TOO_BIG = "does_not_fit"
    BAD_REQUEST = "invalid_request"
    NO_MEMORY = "out_of_memory"  # a running request could not get memory for its next rows
    YIELDED = "gave_way"  # own work that stopped because a client wanted its slot; it may be asked again
    FAILED = "engine_error"


class Refused(Message, frozen=True):
    """The request did not run, or could not go on. Nothing else was disturbed."""

    id: str
    code: RefusalCode
    sentence: str
    retry_after: float | None = None
    param: str | None = None  # the place in the client's request that is wrong


class SlotView(Struct, frozen=True):
    """One slot as people may see it: never a token, never a text."""

    index: int
    window: int
    rows: int
    state: str  # idle | waiting_memory | reading | writing
    request: str | None = None  # that runs there, or that waits for the memory to


class MemoryPart(Struct, frozen=True):
    """One part of the memory in use."""

    name: str
    bytes: int


class MemoryView(Struct, frozen=True):
    """What the memory in use (`total - available`) consists of; the parts sum to it. `outside` is everybody else, and
    negative where the kernel counts as available what we have counted as used."""

    total: int
    available: int
    parts: tuple[MemoryPart, ...]
    free_blocks: int | None = None  # bytes of the machine in free blocks of 2 MiB and more; None: not known


class KvUsage(Struct, frozen=True):
    """What one kind of KV tensor takes on one slot, in bytes."""

    slot: int
    kind: str
    reserved: int  # addresses, or what the whole window may take
    committed: int  # memory


class Counters(Struct, frozen=True):
    """Monotonic since the engine started."""

    rounds_by_size: dict[int, int]  # slots that decoded together -> rounds
    rows: int  # decoded rows
    committed_tokens: int
    prefill_rows: int
    cached_rows: int
    requests: int
    refused: int
    cancelled: int
    peak_running: int
    round_seconds: float
    prefill_seconds: float
    rounds_by_rows: dict[int, int] = {}  # rows of the joint pass, guesses included -> rounds
    drafted: dict[str, int] = {}  # guesses checked, by drafter
    accepted: dict[str, int] = {}  # of them, the model's own choice
    draft_seconds: float = 0.0  # asking drafters
    memory_waits: int = 0  # requests that waited for memory
    reclaims: int = 0  # walks down the pressure ladder
    reclaimed: dict[str, int] = {}  # bytes given back, by rung
    ended_for_memory: int = 0  # requests that got no memory for their next rows, or that the guard ended


class Turn(Struct, frozen=True):
    """Who has the device now."""

    does: str  # reading | writing | idle
    slots: tuple[int, ...] = ()


class SideDisk(Struct, frozen=True):
    """What the disk tier was worth to side slots: requests that began there, those it helped, rows it saved them."""

    lookups: int = 0
    hits: int = 0
    tokens: int = 0


class Parallel(Struct, frozen=True):
    """How requests share the slots. Counts are monotonic since the engine started, and of requests."""

    requested: int  # slots the plan asks for
    max_running: int  # that may run at once now
    max_running_reason: str
    turn: Turn
    memory_needed: int  # bytes, by the first in the queue where it waits for memory; else 0
    memory_left: int  # bytes that it would find; negative where others may still take more than there is
    waits: dict[str, int]  # that waited, by the kind of wait; one that waited for two reasons is in both
    slot0_gave_up: int  # that wanted slot 0 and went to a side slot when it stayed busy
    yielded: int  # of the appliance's own, that gave way to a client
    side_disk: SideDisk


class DiskView(Struct, frozen=True):
    """Conversations on disk. Counts are since the engine started."""

    files: int  # there now
    bytes: int  # there now
    waiting: int  # bytes that are still to be written
    written: int  # files
    read: int  # files
    evicted: int  # files that made room, or that nobody used for long
    dropped: int  # times that a copy found no room to wait in; it is offered again
    corrupt: int  # files that were not what had been written, and are gone
    failed: int  # reads and writes that the system refused


class CachesView(Struct, frozen=True):
    """What is kept of conversations outside the slots."""

    held: dict[str, int]  # bytes in memory, by level
    restored: dict[str, int]  # rows that were not read again, by where they came from
    given_back: int  # pieces that made room in memory
    refused: int  # copies that there was no room for
    disk: DiskView | None = None


class Health(Message, frozen=True):
    """A process's own word about itself. `ready` means it has done real work (the engine: one generated token)."""

    ready: bool
    state: str  # loading | ready | draining | failed
    sentence: str
    progress: float = 1.0  # of loading, 0 to 1
    last_turn_age: float = 0.0  # seconds since the device thread last showed life
    queued: int = 0
    running: int = 0
    waiting_memory: int = 0
    resident_bytes: int = 0
    slots: tuple[SlotView, ...] = ()
    counters: Counters | None = None
    kv: tuple[KvUsage, ...] = ()
    memory: tuple[MemoryPart, ...] = ()  # what this process holds, part by part
    caches: CachesView | None = None
    cache_growth: int = 0  # bytes that caches may still take
    reserved: int = 0  # bytes that admitted requests may still take
    facts: dict[str, str] = {}
    parallel: Parallel | None = None  # of an engine that serves


# --- roles ------------------------------------------------------------------------------------------------------


class QuestionKind(StrEnum):
    CHOICE = "choice"  # one of several labels
    SCORE = "score"  # levels from low to high; the answer is their mean by probability
    NOUL = "noul"  # whether a statement holds


class Question(Struct, frozen=True):
    """`criteria` are the possible answers with what each means, which may be nothing: labels of a choice, `0`, `1`, ...
    of a score, `false` and `true` of a noul, in this order."""

    id: str
    kind: QuestionKind
    instructions: str
    criteria: tuple[tuple[str, str], ...]
    names: tuple[str, ...] = ()  # what the model reads for `false` and `true`; empty: those words


State = str | list[Any] | dict[str, Any]
"""What questions are about. A list is a conversation, of which the end counts: what is too long is cut from its left;
anything else is cut from its right."""


class AskDecider(Message, frozen=True):
    """To a decider, which reads `state` once for all questions. Answered by `Decided` or `Undecided`."""

    id: str
    state: State
    questions: tuple[Question, ...]
    within: float  # seconds; an answer that cannot come in that time is `Undecided`
    max_len: int | None = None  # tokens of one question with the state; None: the model's own limit
    head_max_len: int | None = None  # of them, for the question itself


class Answer(Struct, frozen=True):
    """One question's answer. `act` is how probable it is that acting on it pays, where the model knows."""

    question: str
    probabilities: tuple[tuple[str, float], ...]  # by label, in the order of the question's criteria
    act: float | None = None

    @property
    def label(self) -> str:
        return max(self.probabilities, key=lambda each: each[1])[0]

    @property
    def confidence(self) -> float:
        """Of the label: the figure that thresholds are about."""
        return max(probability for _, probability in self.probabilities)


class Decided(Message, frozen=True):
    id: str
    model: str
    answers: tuple[Answer, ...]  # in the order of the questions
    input_tokens: int
    state_tokens: int
    state_tokens_dropped: int
    truncated_questions: tuple[str, ...] = ()
    seconds: float = 0.0


class RoleRefusal(StrEnum):
    """Why a role did not answer."""

    BUSY = "busy"  # with somebody else's question, or the device's turn belongs to the engine
    LATE = "late"
    UNLOADED = "unloaded_for_memory"
    AWAY = "away"  # not declared, not started yet, or dead
    FAILED = "failed"
    BAD_QUESTION = "invalid_request"


class Undecided(Message, frozen=True):
    """Answers `AskDecider` and `Narrate`."""

    id: str
    reason: RoleRefusal
    sentence: str


class Observe(Message, frozen=True):
    """To the shadow reader, which answers nobody: it writes its own verdicts into the journal."""

    id: str  # the request's
    state: State
    questions: tuple[Question, ...]


class Narrate(Message, frozen=True):
    """To the narrator: what may be seen of a request, never its prompt. Answered by `Narrated` or `Undecided`."""

    id: str
    task: str  # the beginning of what the user asked last
    doing: str  # our own line about the state: `Reading: 512 of 4,096 prompt tokens`
    heard: str  # the end of what was written so far
    within: float  # seconds


class Narrated(Message, frozen=True):
    id: str
    line: str


class AskLease(Message, frozen=True):
    """To the engine, by a role on its device: may I run one forward? Answered by `Lease`, once."""

    id: str
    seconds: float  # the turn is void after them, counted from the grant
    when_idle: bool  # refused at once unless slot 0 is idle


class Lease(Message, frozen=True):
    id: str
    granted: bool
    sentence: str = ""


class ReturnLease(Message, frozen=True):
    id: str


# --- from the director ------------------------------------------------------------------------------------------


class Subscribe(Message, frozen=True):
    """To the director: answer with an `ApplianceState` now and at every change."""


class Stop(Message, frozen=True):
    """To the director: drain, stop everything in reverse order, then supervisord."""


class FreeRoles(Message, frozen=True):
    """To the director: requests need so many bytes; unload what roles it may. Answered by `RolesFreed`."""

    bytes: int


class RolesFreed(Message, frozen=True):
    """So many bytes are free, or will be once what was told to stop has stopped."""

    bytes: int
    sentence: str


class ProgramStatus(Struct, frozen=True):
    name: str
    kind: str
    state: str  # stopped | starting | loading | ready | draining | stopping | backoff | failed | refused | held
    pid: int | None
    since: float  # unix time of the last change of state
    restarts: int
    sentence: str = ""
    progress: float = 1.0  # of loading, 0 to 1
    exit_status: int | None = None  # of its last crash; None: none yet, or a signal


class RoleState(StrEnum):
    """Where a role stands with its memory. Its program's state says what its process does."""

    WAITING = "waiting"  # has not asked yet: the engine is not ready, or another's turn comes first
    STARTING = "starting"  # may load; its process is on its way
    LOADED = "loaded"
    UNLOADED_FOR_MEMORY = "unloaded_for_memory"  # on hold: callers are told so at once, nothing loads it on demand
    RELOADING = "reloading"  # back from a hold; its process is on its way
    REFUSED = "refused"  # residency keeps its memory free for requests
    FAILED = "failed"  # died by itself; asks again after a wait


class RoleStatus(Struct, frozen=True):
    name: str
    kind: str  # decider | narrator | shadow-reader
    state: RoleState
    sentence: str  # why, with numbers, for people
    claim: int  # bytes
    since: float  # unix time of the last change of state
    wait: float = 0.0  # of one on hold, or refused: seconds for which there has to be room before it loads


class ReloadReport(Struct, frozen=True):
    """What became of the last edit of a document."""

    at: float
    outcome: str  # applied | refused | rolled_back | in_progress
    change: str  # live | role | engine | refused | none
    sentence: str
    details: str = ""  # the rendered problems when refused


class ApplianceState(Message, frozen=True):
    plan_id: str
    phase: str  # starting | serving | draining | stopping
    programs: tuple[ProgramStatus, ...]
    live: bytes  # JSON of contract.plan.Live
    memory_available: int
    memory_total: int
    at: float
    reload: ReloadReport | None = None
    memory: MemoryView | None = None
    placements: bytes = b"[]"  # JSON of tuple[contract.plan.Placement, ...]: why a role is not loaded
    roles: tuple[RoleStatus, ...] = ()  # in the order in which they load


class AskWhy(Message, frozen=True):
    """To the gateway: what there is to say of a request beside its row in the ledger. Answered by `Why`."""

    id: str


class Why(Message, frozen=True):
    lines: tuple[str, ...]  # may quote what the client sent; for whoever runs the appliance


AnyMessage = (
    AskWhy
    | Why
    | Generate
    | Cancel
    | SetLive
    | Drain
    | Resume
    | AskHealth
    | Progress
    | Started
    | Tokens
    | Finished
    | Refused
    | Health
    | Subscribe
    | Stop
    | FreeRoles
    | AskDecider
    | Decided
    | Undecided
    | Observe
    | Narrate
    | Narrated
    | AskLease
    | Lease
    | ReturnLease
    | RolesFreed
    | ApplianceState
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> AnyMessage:
    """Raises `msgspec.ValidationError` (or `DecodeError`) for anything that is not one of our messages."""
    return _DECODER.decode(data)
