"""N-gram hashing against the reference's own buffers and, token by token, against its definition."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding

from tandem.model.config import NgramConfig
from tandem.model.ngrams import Hashing, hashing, look_at, table_rows

SEPARATOR = 1


def config(longest: int, heads: int, smallest: int, seed: int) -> NgramConfig:
    return NgramConfig(
        layers=(0, 2),
        width=longest * heads * 4,
        longest=longest,
        heads=heads,
        smallest_vocabulary=smallest,
        padding=16,
        parts=1,
        seed=seed,
        taps=4,
        separator=SEPARATOR,
    )


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(("longest", "heads", "smallest", "seed"), [(3, 3, 50, 1234), (2, 2, 3, 1), (4, 1, 90, 7)])
def test_hashing_follows_from_the_configuration(longest: int, heads: int, smallest: int, seed: int, place: int) -> None:
    ours = config(longest, heads, smallest, seed)
    text = transformers.Qwen4ExpTextConfig(
        vocab_size=96,
        ngram_size=longest,
        heads_per_ngram=heads,
        ngram_vocab_size_base=smallest,
        make_ngram_vocab_size_divisible_by=16,
        seed=seed,
        eos_token_id=SEPARATOR,
    )
    reference = Qwen4ExpTextNGramEmbedding(text, 24, 0, place)
    made = hashing(ours, place, 96)
    assert made.multipliers.tolist() == reference.layer_multipliers.tolist()
    assert made.vocabularies.tolist() == reference.ngram_heads_vocab_sizes.tolist()
    assert made.offsets.tolist() == reference.ngram_heads_offsets.tolist()
    assert table_rows(ours, place) == reference.ngram_embedding.weight.shape[0]


def test_every_length_is_hashed_by_its_own_heads() -> None:
    made = Hashing(torch.tensor([3, 5, 7]), torch.tensor([11, 13, 17, 19]), torch.tensor([0, 11, 24, 41]))
    two, three = (8 * 3) ^ (6 * 5), (8 * 3) ^ (6 * 5) ^ (4 * 7)
    expected = [two % 11, two % 13 + 11, three % 17 + 24, three % 19 + 41]
    assert made.rows(torch.tensor([[8, 6, 4]])).tolist() == [expected]


def test_an_n_gram_does_not_reach_across_a_separator() -> None:
    history = torch.tensor([[9, 8, 7, 6], [9, 1, 7, 6], [1, 8, 7, 6], [9, 8, 1, 6]])
    assert look_at(history, SEPARATOR).tolist() == [[9, 8, 7, 6], [9, 1, 1, 1], [1, 8, 7, 6], [9, 8, 1, 1]]
