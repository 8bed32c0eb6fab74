"""What a Laya checkpoint answers, worked out from its weights alone: the prompt, the head, the calibration."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, relu, scaled_dot_product_attention
from transformers import AutoConfig, AutoModel, AutoTokenizer

from tandem.contract.messages import Question, QuestionKind, State

OPTION_TOKENS = 48
LEAST_INSTRUCTIONS = 16
TRUTH = {"false": "no, the statement does not hold", "true": "yes, the statement holds"}


class Oracle:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "rl_agent_config.json").read_text())
        self.weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        self.encoder = AutoModel.from_config(AutoConfig.from_pretrained(folder / "encoder"), attn_implementation="sdpa")
        body = {name.removeprefix("encoder."): w for name, w in self.weights.items() if name.startswith("encoder.")}
        self.encoder.load_state_dict(body, strict=True)
        self.encoder.eval()

    @torch.no_grad()
    def answer(self, state: State, question: Question) -> tuple[list[float], float]:
        """Probabilities in the order of the criteria, and that acting on the answer pays."""
        tokens, marks = self.prompt(state, question)
        kind = ("choice", "score", "noul").index(question.kind)
        ids = torch.tensor([tokens])
        hidden = self.encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        hidden = hidden + self.weights["type_emb.weight"][kind]
        for layer in range(self.config["head_layers"]):
            hidden = self.head_layer(hidden, f"head.layers.{layer}.")
        logits = self.mlp(self.norm(hidden[0, marks], "scorer.0"), "scorer.1", "scorer.3")[:, 0]
        return (logits / self.temperature(question)).softmax(-1).tolist(), self.act(hidden[0, 0], logits.softmax(-1))

    def prompt(self, state: State, question: Question) -> tuple[list[int], list[int]]:
        """Tokens, and where the marks of the options stand."""
        mark, room = self.tokenizer.mask_token_id, self.config["head_max_len"]
        options = [[mark, *self.encode(f" {option}")[:OPTION_TOKENS]] for option in self.options(question)]
        if room - sum(map(len, options)) < LEAST_INSTRUCTIONS:
            most = max(4, (room - LEAST_INSTRUCTIONS) // len(options))
            options = [option[:most] for option in options]
        left = room - sum(map(len, options))
        said = self.encode(f"{question.kind} question: {question.instructions}")[: max(8, left)]
        tokens, marks = [self.tokenizer.cls_token_id, *said, self.tokenizer.sep_token_id], []
        for option in options:
            marks.append(len(tokens))
            tokens += option
        tokens.append(self.tokenizer.sep_token_id)
        about = self.encode(state if isinstance(state, str) else json.dumps(state, ensure_ascii=False))
        space = max(0, self.config["max_len"] - len(tokens) - 1)
        about = about[max(0, len(about) - space) :] if isinstance(state, list) else about[:space]
        return [*tokens, *about, self.tokenizer.sep_token_id], marks

    def options(self, question: Question) -> list[str]:
        match question.kind:
            case QuestionKind.CHOICE:
                return [f"{label}: {meaning}" if meaning else label for label, meaning in question.criteria]
            case QuestionKind.SCORE:
                return [f"level {level}: {meaning}" for level, meaning in question.criteria]
            case _:
                names = dict(zip(("false", "true"), question.names or ("false", "true"), strict=True))
                return [f"{names[label]}: {meaning or TRUTH[label]}" for label, meaning in question.criteria]

    def temperature(self, question: Question) -> float:
        number = len(question.criteria)
        bucket = "2" if number <= 2 else "3-5" if number <= 5 else "6-10" if number <= 10 else "11+"
        usual = dict(zip(("choice", "score", "noul"), self.config["temperature"], strict=True))[question.kind]
        return min(5.0, max(0.5, self.config["temperature_by_options"].get(f"{question.kind}:{bucket}", usual)))

    def act(self, first: Tensor, probabilities: Tensor) -> float:
        number = len(probabilities)
        entropy = -(probabilities * probabilities.clamp_min(1e-9).log()).sum() / math.log(max(number, 2))
        best = probabilities.topk(min(2, number)).values
        second = best[1] if number > 1 else 0.0
        facts = torch.stack([best[0], best[0] - second, entropy, torch.tensor(max(number, 2) / 255)])
        out = self.mlp(torch.cat([first, facts])[None], "act_head.0", "act_head.2")
        return float(out.softmax(-1)[0, 0])

    def head_layer(self, hidden: Tensor, name: str) -> Tensor:
        """Attention and feed-forward, each behind its norm."""
        batch, rows, width = hidden.shape
        heads = max(1, width // 64)
        mixed = linear(self.norm(hidden, f"{name}norm1"), *self.matrix(f"{name}self_attn.in_proj", "_"))
        query, key, value = (
            part.view(batch, rows, heads, width // heads).transpose(1, 2) for part in mixed.chunk(3, dim=-1)
        )
        seen = scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, rows, width)
        hidden = hidden + linear(seen, *self.matrix(f"{name}self_attn.out_proj"))
        inner = relu(linear(self.norm(hidden, f"{name}norm2"), *self.matrix(f"{name}linear1")))
        return hidden + linear(inner, *self.matrix(f"{name}linear2"))

    def norm(self, rows: Tensor, name: str) -> Tensor:
        return layer_norm(rows, rows.shape[-1:], *self.matrix(name))

    def mlp(self, rows: Tensor, first: str, second: str) -> Tensor:
        return linear(gelu(linear(rows, *self.matrix(first))), *self.matrix(second))

    def matrix(self, name: str, dot: str = ".") -> tuple[Tensor, Tensor]:
        return self.weights[f"{name}{dot}weight"], self.weights[f"{name}{dot}bias"]

    def encode(self, text: str) -> list[int]:
        tokens: Any = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(tokens)
