"""The smallest honest server over transformers' `generate`: chats in, a stream of server-sent events out.

Runs as a program in the transformers peer's environment: `python generate_server.py DIRECTORY PORT THREADS MOST`. Knows
nothing of the project. Requests that arrive together are generated as one static batch of at most MOST; one that
arrives later waits until that batch is done. Every answer has all the tokens asked for.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

TOGETHER = 0.005  # seconds within which requests count as having come together


@dataclass
class Request:
    prompt: list[int]
    max_tokens: int
    tokens: Queue[int | None] = field(default_factory=Queue)  # None: the batch is done


class Fan(BaseStreamer):
    """Hands each row of a batch its own tokens."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """[batch, prompt] once, then [batch] for each step."""
        if not self.has_prompt:
            self.has_prompt = True
            return
        for request, token in zip(self.requests, value.tolist(), strict=True):
            request.tokens.put(token)

    def end(self) -> None:
        for request in self.requests:
            request.tokens.put(None)


class Engine:
    def __init__(self, directory: str, most: int) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory)
        self.model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)  # not for training
        self.most = most
        self.waiting: Queue[Request] = Queue()
        self.padding = self.tokenizer.pad_token_id or self.tokenizer.eos_token_id or 0

    def run(self) -> None:
        while True:
            self.generate(self.together())

    def together(self) -> list[Request]:
        requests = [self.waiting.get()]
        while len(requests) < self.most:
            try:
                requests.append(self.waiting.get(timeout=TOGETHER))
            except Empty:
                break
        return requests

    @torch.inference_mode()
    def generate(self, requests: list[Request]) -> None:
        longest = max(len(request.prompt) for request in requests)
        gaps = [longest - len(request.prompt) for request in requests]  # on the left
        rows = [[self.padding] * gap + request.prompt for gap, request in zip(gaps, requests, strict=True)]
        mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
        tokens = max(request.max_tokens for request in requests)
        self.model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=self.padding,
            streamer=Fan(requests),
        )


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokenizer = self.engine.tokenizer
        encoded = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, return_dict=True)
        request = Request(encoded["input_ids"], int(body["max_tokens"]))
        self.engine.waiting.put(request)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        told = ""
        written: list[int] = []
        while len(written) < request.max_tokens and (token := request.tokens.get()) is not None:
            written.append(token)
            text = tokenizer.decode(written, skip_special_tokens=True)
            if not text.endswith("�"):  # a letter whose other bytes are still to come
                self.say(choices=[{"index": 0, "delta": {"content": text[len(told) :]}, "finish_reason": None}])
                told = text
        self.say(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
        counts = {"prompt_tokens": len(request.prompt), "completion_tokens": len(written)}
        self.say(choices=[], usage=counts)
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, **chunk: Any) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()


def main(directory: str, port: int, threads: int, most: int) -> None:
    torch.set_num_threads(threads)
    Handler.engine = Engine(directory, most)
    threading.Thread(target=Handler.engine.run, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
