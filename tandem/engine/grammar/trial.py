"""A grammar's first reading, in a process of its own: `python -m tandem.engine.grammar.trial`.

The library is native code that a hostile grammar can keep busy for minutes, fill gigabytes with or run out of stack.
Here that costs a child process, which the kernel ends; what comes out well is safe for the engine to build.

Reads JSON of a `Grammar` from its standard input, writes JSON of a `Verdict`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, Final

import msgspec
from msgspec import Struct

from tandem.contract.messages import Grammar, GrammarKind
from tandem.contract.process import die_with_parent
from tandem.engine.grammar import library
from tandem.engine.grammar.faults import explain, find
from tandem.engine.grammar.schemas import MOST_HELD, dotted, find_endless, find_too_long, find_uncounted
from tandem.units import MIB

CPU_SECONDS: Final = 3
MEMORY: Final = 512 * MIB  # of addresses
STACK: Final = 4 * MIB  # half of what the engine's threads have
DEEPEST: Final = 100  # objects and lists within one another
SEARCH_SECONDS: Final = 1.5  # of processor time, to find which place in a schema is wrong
TOKEN_SECONDS: Final = 0.1  # of processor time, for what may come first
_ENDING: Final = 0  # the byte that stands for an answer's end


class Verdict(Struct, frozen=True, omit_defaults=True):
    source: str = ""  # in the library's own form, when the grammar is good
    sentence: str = ""  # what is wrong with it otherwise
    path: str = ""  # where, from the grammar's root


def main() -> None:
    die_with_parent()
    for limit, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_STACK, STACK),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    grammar = msgspec.json.decode(sys.stdin.buffer.read(), type=Grammar)
    sys.stdout.buffer.write(msgspec.json.encode(judge(grammar)))


def judge(grammar: Grammar) -> Verdict:
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return _schema(grammar.text)
            case GrammarKind.JSON_OBJECT:
                return Verdict(library.from_schema('{"type": "object"}'))
            case GrammarKind.REGEX:
                source = library.from_regex(grammar.text)
            case GrammarKind.CHOICE:
                source = library.from_choice(msgspec.json.decode(grammar.text, type=list[str]))
            case GrammarKind.LARK:
                source = library.from_text(grammar.text)
    except RecursionError:
        return Verdict(sentence="it is nested too deeply")
    except ValueError as error:
        return Verdict(sentence=explain(str(error)))
    refusal = _refusal(source)
    return Verdict(source) if refusal is None else Verdict(sentence=explain(refusal))


def _schema(text: str) -> Verdict:
    schema: Any = json.loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return Verdict(sentence="a schema is a JSON object")
    if _depth(schema) > DEEPEST:
        return Verdict(sentence=f"it is nested more than {DEEPEST} deep")
    endless = find_endless(schema)
    if endless is not None:
        return Verdict(sentence="it holds another of itself without end", path=dotted(endless))
    uncounted = find_uncounted(schema)
    if uncounted is not None:
        return Verdict(sentence="more than 1 cannot be enforced beyond what is required", path=dotted(uncounted))
    too_long = find_too_long(schema)
    if too_long is not None:
        sentence = f"an answer may have to hold {MOST_HELD:,} characters or items, and not more"
        return Verdict(sentence=sentence, path=dotted(too_long))
    until = time.process_time() + SEARCH_SECONDS
    finding = find(
        schema,
        judge=lambda schema: _refusal(library.from_schema(json.dumps(schema))),
        has_time=lambda: time.process_time() < until,
    )
    if finding is not None:
        return Verdict(sentence=explain(finding.sentence), path=dotted(finding.path))
    return Verdict(library.from_schema(json.dumps(schema)))


def _refusal(source: str) -> str | None:
    """The library's, for a grammar that does not compile or allows nothing to be written. Judged over single bytes,
    which every vocabulary is made of."""
    start = library.start(source, _BYTES)
    if start.fault:
        return start.fault
    began = time.process_time()
    start.allowed()
    return start.fault or ("too large" if time.process_time() - began > TOKEN_SECONDS else None)


def _depth(part: Any) -> int:
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return 1 + max(map(_depth, inner), default=0)


_BYTES: Final = library.Words(
    [b"" if byte == _ENDING else bytes([byte]) for byte in range(256)], [_ENDING], lambda text: list(text.encode())
)

if __name__ == "__main__":
    main()
