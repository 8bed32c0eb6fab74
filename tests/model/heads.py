"""The head that guesses ahead, written a second time: plain torch around the reference library's own layer.

It reads whole sequences and keeps nothing. Names of its tensors are those of published checkpoints.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from checkpoints import save
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

HEADED = ("qwen35", "qwen35-moe", "flashnext")


class Norm(nn.Module):
    """Over a whole row, whatever it is made of; stored as its distance from 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        return rows / (rows.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + self.weight)


class Head(nn.Module):
    """`tokens` [rows + 1] and what the model carried out of the first `rows`, [rows, width] -> carried on, logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = model.config
        self._of = [model]  # in a list: its tensors are not the head's
        self.pre_fc_norm_embedding = Norm(config.hidden_size)
        last = config.num_hidden_layers - 1
        assert config.layer_types[last] != "linear_attention"
        self.layers = nn.ModuleList([type(model.model.layers[last])(config, last)])

    @property
    def model(self) -> Any:
        return self._of[0]

    def carried(self, tokens: Tensor) -> Tensor:
        """Out of every row of a sequence, [rows, width]."""
        raise NotImplementedError

    def enter(self, tokens: Tensor, carried: Tensor) -> Tensor:
        raise NotImplementedError

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        """What it carries on, and rows for the output head."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        rows = carried.shape[0]
        stream = self.enter(self.pre_fc_norm_embedding(self.model.model.embed_tokens(tokens[1:])), carried)[None]
        turns = self.model.model.rotary_emb(stream, torch.arange(rows).expand(3, 1, rows))
        causal = torch.ones(rows, rows, dtype=torch.bool).tril()[None, None]
        carried, leaving = self.leave(self.layers[0](stream, position_embeddings=turns, attention_mask=causal)[0])
        return carried, self.model.lm_head(leaving)

    @torch.no_grad()
    def guess(self, tokens: Tensor, steps: int) -> tuple[list[int], list[Tensor]]:
        """Behind the last of `tokens`, whose row the model has not read: greedy tokens, and the logits they are of."""
        carried, logits = self.carried(tokens[:-1]), []
        for _ in range(steps):
            own, answered = self(tokens, carried)
            logits.append(answered[-1])
            carried = torch.cat([carried, own[-1:]])
            tokens = torch.cat([tokens, answered[-1].argmax()[None]])
        return tokens[-steps:].tolist(), logits


class RowHead(Head):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        hidden = model.config.hidden_size
        self.pre_fc_norm_hidden, self.norm = Norm(hidden), Norm(hidden)
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)

    def carried(self, tokens: Tensor) -> Tensor:
        return self.model.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]

    def enter(self, tokens: Tensor, carried: Tensor) -> Tensor:
        return self.fc(torch.cat([tokens, self.pre_fc_norm_hidden(carried)], dim=-1))

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.norm(stream)
        return rows, rows


class StreamsHead(Head):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        hidden, self.streams = model.config.hidden_size, model.config.hc_count
        self.pre_fc_norm_hidden = Norm(self.streams * hidden)
        self.fc_embedding, self.fc_hidden = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.hyper_connection_mixer = type(model.model.hyper_connection_mixer)(model.config, use_combine=False)

    def carried(self, tokens: Tensor) -> Tensor:
        seen = []
        hook = self.model.model.layers[-1].register_forward_hook(lambda layer, given, answer: seen.append(answer[0]))
        self.model.model(input_ids=tokens[None], use_cache=False)
        hook.remove()
        return seen[0]

    def enter(self, tokens: Tensor, carried: Tensor) -> Tensor:
        token = self.fc_embedding(tokens)
        streams = self.pre_fc_norm_hidden(carried).chunk(self.streams, dim=-1)
        return torch.cat([self.fc_hidden(stream) + token for stream in streams], dim=-1)

    def leave(self, stream: Tensor) -> tuple[Tensor, Tensor]:
        return stream, self.hyper_connection_mixer(stream)


def save_with_head(family: str, directory: Path) -> Head:
    """Write the checkpoint of a family with a head to `directory`; returns the head, which knows its model."""
    model = save(family, directory)
    torch.manual_seed(11)
    head = (StreamsHead(model) if family == "flashnext" else RowHead(model)).eval()
    for name, parameter in head.named_parameters():
        if "norm" in name:
            nn.init.normal_(parameter, std=0.2)
        else:
            nn.init.normal_(parameter, std=0.6 if "mlp.gate." in name else 0.15)
    file, config = directory / "model.safetensors", directory / "config.json"
    tensors = {f"mtp.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(load_file(file) | tensors, file, metadata={"format": "pt"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"mtp_num_hidden_layers": 1}))
    return head
