"""`python -m bench.perplexity`: how well the served model foretells a text, held against float32 on the same file.

Public-domain texts (`bench/texts`) are cut into windows of at most 512 tokens, each read from nothing as a prompt is.
Every token of a window but its first is foretold from those before it. float32 has the weights as the file stores them,
widened; every reader sees the same tokens in the same windows. About two minutes on two cores; other load costs time
and changes no figure.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.machine import facts
from bench.model_distance import HEADER, Distance
from bench.readers import REFERENCE, Reader, open_readers, served_engine
from bench.record import parser_of, write_record
from bench.texts import Text, read_texts, windows
from bench.turns import progress
from tandem.errors import TandemError
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

WANTED: Final = 0.005  # the served perplexity lies at most this far from float32's, as a share of it


@dataclass(frozen=True, slots=True)
class Window:
    """What every reader made of one window. `surprise` is the sum of -log p over its foretold tokens, in nats."""

    text: str
    foretold: int  # tokens
    surprise: Mapping[str, float]  # by reader
    distance: Mapping[str, Distance]  # of each reader's logits from float32's

    def perplexity(self, reader: str) -> float:
        return perplexity([self], reader)


def perplexity(read: Sequence[Window], reader: str) -> float:
    """Over all tokens of these windows."""
    return math.exp(sum(window.surprise[reader] for window in read) / sum(window.foretold for window in read))


def ratio(read: Sequence[Window], reader: str) -> float:
    """To float32's perplexity."""
    return perplexity(read, reader) / perplexity(read, REFERENCE)


def surprise(logits: Tensor, tokens: Tensor) -> float:
    """[tokens, vocab]: each token but the first is foretold by the row before it. In nats, summed in float64."""
    return functional.cross_entropy(logits[:-1], tokens[1:], reduction="none").double().sum().item()


def read_window(readers: Sequence[Reader], text: str, tokens: Sequence[int]) -> Window:
    """`readers[0]` is float32."""
    ids = torch.tensor(tokens)
    expected = readers[0].window(tokens)
    said, apart = {REFERENCE: surprise(expected, ids)}, {}
    for reader in readers[1:]:
        logits = reader.window(tokens)
        said[reader.name] = surprise(logits, ids)
        apart[reader.name] = Distance.between(expected[:-1], logits[:-1])
    return Window(text, len(tokens) - 1, said, apart)


def table(read: Sequence[Window], readers: Sequence[str], served: str) -> str:
    """A row a window, then all of them; then a row a reader."""
    lines = [f"{'window':<16}{'tokens':>7}{REFERENCE:>10}{'served':>10}{'ratio':>9}"]
    rows = [*((window.text, [window]) for window in read), ("all", list(read))]
    lines += [
        f"{name:<16}{sum(window.foretold for window in some):>7}{perplexity(some, REFERENCE):>10.4f}"
        f"{perplexity(some, served):>10.4f}{ratio(some, served):>9.4f}"
        for name, some in rows
    ]
    lines += ["", f"{'':<26}{'perplexity':>10}{'ratio':>9}{HEADER}"]
    lines.append(f"{REFERENCE:<26}{perplexity(read, REFERENCE):>10.4f}{1:>9.4f}")
    lines += [
        f"{name:<26}{perplexity(read, name):>10.4f}{ratio(read, name):>9.4f}"
        f"{Distance.over([window.distance[name] for window in read])}"
        for name in readers
        if name != REFERENCE
    ]
    return "\n".join(lines)


def record(read: Sequence[Window], texts: Sequence[Text], readers: Sequence[str]) -> dict[str, Any]:
    return {
        "texts": [{"name": text.name, "title": text.title, "author": text.author, "year": text.year} for text in texts],
        "windows": [
            {
                "text": window.text,
                "foretold": window.foretold,
                "perplexity": {name: window.perplexity(name) for name in readers},
                "ratio": {name: ratio([window], name) for name in readers if name != REFERENCE},
            }
            for window in read
        ],
        "all": {
            name: {
                "perplexity": perplexity(read, name),
                "ratio": ratio(read, name),
                **({} if name == REFERENCE else asdict(Distance.over([window.distance[name] for window in read]))),
            }
            for name in readers
        },
    }


def main() -> int:
    parser = parser_of("bench.perplexity", __doc__)
    parser.add_argument("--quick", action="store_true", help="the first window of each text: does it work")
    parser.add_argument("--window", type=int, default=512, help="most tokens that are read together")
    options = parser.parse_args()
    machine = facts()
    try:
        engine = served_engine(options.set)
        readers = open_readers(engine, progress)
    except TandemError as error:
        sys.stderr.write(f"perplexity: {error}\n")
        return error.exit_status
    tokenizer, texts = Tokenizer(read_vocabulary(Path(engine.weights))), read_texts()
    pieces = [(text, piece) for text in texts for piece in windows(tokenizer.encode(text.body), options.window)]
    if options.quick:
        pieces = [next(pair for pair in pieces if pair[0] is text) for text in texts]
    read = []
    for number, (text, tokens) in enumerate(pieces):
        progress(f"{text.name}: window {number + 1} of {len(pieces)}")
        read.append(read_window(readers, text.name, tokens))
    names = [reader.name for reader in readers]
    print(f"\n{table(read, names, served=names[1])}\n")
    found = ratio(read, names[1])
    is_met = abs(found - 1) <= WANTED
    print(f"served / float32: {found:.4f}; wanted within {WANTED:.1%}: {'met' if is_met else 'MISSED'}")
    measured = {
        "machine": machine,
        "model": Path(engine.weights).name,
        "sha256": engine.weights_sha256,
        "threads": engine.threads,
        "chunk": engine.chunk,
        "window": options.window,
        "served": names[1],
        "wanted": WANTED,
        "met": is_met,
        **record(read, texts, names),
    }
    print(f"written to {write_record(options.out, 'perplexity', measured)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
