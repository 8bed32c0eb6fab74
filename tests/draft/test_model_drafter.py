"""A smaller model as a drafter: it follows at its own pace, keeps what came true, and never changes what is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from checkpoints import VOCAB, random_tokens, save
from rounds_by_hand import follow, write
from torch import Tensor

from tandem.draft.model import ModelDrafter, check_same_words
from tandem.draft.tree import NO_GUESS, NOT_YET, DraftTree, Origin
from tandem.errors import CannotStart
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Model, SequenceState
from tandem.model.weights.quant import Compute
from tandem.text.vocabulary import TokenKind, Vocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = 128


@dataclass
class Watched:
    """A model, and the rows of every block it was given, pass by pass."""

    model: Model
    passes: list[list[int]] = field(default_factory=list)

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        self.passes.append([block.rows for block in blocks])
        return self.model.forward(blocks)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One that can be rewound, one that cannot."""

    def load(family: str) -> Model:
        directory: Path = tmp_path_factory.mktemp(family)
        save(family, directory)
        return open_checkpoint(directory, Compute.FLOAT32)

    return {family: load(family) for family in ("qwen3", "qwen35")}


@pytest.fixture(params=["qwen3", "qwen35"])
def watched(request: pytest.FixtureRequest, models: dict[str, Model]) -> Watched:
    return Watched(models[request.param])


def drafter_of(model: Watched | Model, rows_a_round: int = 128) -> ModelDrafter:
    return ModelDrafter(model, VOCAB, rows_a_round, least=0.0)  # type: ignore[arg-type]


def a_state(model: Watched, window: int = WINDOW) -> SequenceState:
    return model.model.new_state(window)


def anew(model: Watched, tokens: Sequence[int], limit: int) -> DraftTree:
    """What a drafter proposes that has never seen anything else."""
    drafter = drafter_of(model.model)
    session = drafter.begin(a_state(model), "")
    drafter.follow(session, tokens)
    return drafter.propose([session], [limit])[0]


def is_same(tree: DraftTree, expected: DraftTree) -> bool:
    """Up to the rounding of rows read in other pieces."""
    return replace(tree, scores=expected.scores) == expected and tree.scores == pytest.approx(expected.scores, rel=1e-3)


def test_of_a_draft_by_the_served_model_everything_comes_true(watched: Watched) -> None:
    prompt = random_tokens(30, 4)
    plain, drafted = write(watched.model, prompt, 60), write(watched.model, prompt, 60, drafter_of(watched))
    assert drafted.accepted == [4] * len(drafted.accepted) and len(drafted.accepted) == 12
    assert drafted.tokens[:60] == plain.tokens[:60]


def test_another_models_draft_changes_nothing(models: dict[str, Model]) -> None:
    prompt = random_tokens(30, 4)
    for served, drafting in (("qwen3", "qwen35"), ("qwen35", "qwen3")):
        plain = write(models[served], prompt, 40)
        drafted = write(models[served], prompt, 40, drafter_of(models[drafting]))
        assert drafted.tokens[:40] == plain.tokens[:40] and sum(drafted.accepted) < len(drafted.trees)


def test_guesses_are_those_behind_the_text_whatever_was_guessed_before(watched: Watched) -> None:
    """Rejected rows are written over, accepted ones are kept, a memory is put back."""
    drafter, tokens = drafter_of(watched), random_tokens(30, 4).tolist()
    session = drafter.begin(a_state(watched), "")
    drafter.follow(session, tokens)
    for step, came in enumerate((0, 2, 4, 1, 0, 3)):
        tree = drafter.propose([session], [4])[0]
        assert is_same(tree, anew(watched, tokens, 4))
        written = [*tree.tokens[:came], 3 + step]
        tokens += written
        drafter.follow(session, written)


def test_scores_are_probabilities_of_paths(watched: Watched) -> None:
    tokens = random_tokens(30, 4)
    tree = anew(watched, tokens.tolist(), 3)
    line = torch.cat([tokens, torch.tensor(tree.tokens)])
    logits = watched.model.forward([Block(line[:-1], 0, a_state(watched))])
    assert int(logits[-1].argmax()) == tree.tokens[-1]
    assert tree.scores[2] / tree.scores[1] == pytest.approx(float(logits[-1].softmax(-1).max()), rel=1e-3)
    assert set(tree.origins) == {Origin("model")}


def test_sequences_share_passes_and_get_what_each_gets_alone(watched: Watched) -> None:
    drafter, texts = drafter_of(watched), [random_tokens(rows, rows).tolist() for rows in (4, 9, 3)]
    sessions = [drafter.begin(a_state(watched), "") for _ in texts]
    for session, text in zip(sessions, texts, strict=True):
        drafter.follow(session, text)
    trees = drafter.propose(sessions, [3, 1, 2])
    assert watched.passes == [[4, 9, 3], [1, 1], [1]]
    assert trees == [anew(watched, text, limit) for text, limit in zip(texts, (3, 1, 2), strict=True)]


def test_a_long_prompt_is_read_in_the_course_of_rounds(watched: Watched) -> None:
    drafter = drafter_of(watched, rows_a_round=20)
    long, short = (drafter.begin(a_state(watched), "") for _ in range(2))
    tokens = random_tokens(50, 1).tolist()
    follow(drafter, long, tokens)
    follow(drafter, short, [7, 8, 9])
    trees = drafter.propose([long, short], [2, 2])
    assert trees[0] is NOT_YET and is_same(trees[1], anew(watched, [7, 8, 9], 2))
    assert watched.passes == [[17], [3], [1]]
    follow(drafter, long, [5])
    assert drafter.propose([long], [2])[0] is NOT_YET
    follow(drafter, long, [6])
    assert is_same(drafter.propose([long], [2])[0], anew(watched, [*tokens, 5, 6], 2))
    assert watched.passes[3:] == [[20], [15], [1]]


def test_the_next_turn_goes_on_where_the_last_one_was(watched: Watched) -> None:
    """On the same slot, as far as the texts agree and its memory can be put back there."""
    drafter, state, tokens = drafter_of(watched), a_state(watched), random_tokens(40, 1).tolist()
    session = drafter.begin(state, "someone")
    drafter.follow(session, tokens)
    drafter.propose([session], [3])
    drafter.end(session)
    watched.passes.clear()
    session = drafter.begin(state, "someone")
    drafter.follow(session, [*tokens, 9, 10])
    assert is_same(drafter.propose([session], [3])[0], anew(watched, [*tokens, 9, 10], 3))
    assert watched.passes[0] == [2]


def test_another_text_on_the_slot_starts_over(watched: Watched) -> None:
    drafter, state = drafter_of(watched), a_state(watched)
    for text in (random_tokens(40, 1).tolist(), random_tokens(25, 2).tolist(), random_tokens(60, 1).tolist()):
        session = drafter.begin(state, "")
        drafter.follow(session, text)
        assert is_same(drafter.propose([session], [3])[0], anew(watched, text, 3))


def test_another_scope_finds_nothing_read(watched: Watched) -> None:
    drafter, state, tokens = drafter_of(watched), a_state(watched), random_tokens(40, 1).tolist()
    for scope in ("one", "other"):
        session = drafter.begin(state, scope)
        drafter.follow(session, tokens)
        drafter.propose([session], [1])
    assert watched.passes == [[40], [40]]


def test_past_its_window_it_is_silent(watched: Watched) -> None:
    """That of the slot, or its own where that is smaller; the last guess needs no row."""
    drafter, tokens = drafter_of(watched), random_tokens(WINDOW + 3, 1).tolist()
    nodes = []
    for window in (30, 500):
        state = SequenceState(window, torch.float32, [])
        for rows in (min(window, WINDOW) + extra for extra in (-2, 0, 1)):
            session = drafter.begin(state, "")
            drafter.follow(session, tokens[:rows])
            nodes.append(drafter.propose([session], [5])[0].nodes)
    assert nodes == [3, 1, 0] * 2


def test_an_id_it_does_not_have_silences_it(watched: Watched) -> None:
    drafter = drafter_of(watched)
    session = drafter.begin(a_state(watched), "")
    follow(drafter, session, [5, 6], [VOCAB])
    assert drafter.propose([session], [3]) == [NO_GUESS]
    follow(drafter, session, [7])
    assert drafter.propose([session], [3]) == [NO_GUESS] and not watched.passes


def test_ids_the_served_model_does_not_have_are_not_guessed(models: dict[str, Model]) -> None:
    drafter = ModelDrafter(models["qwen3"], vocab=20, least=0.0)
    session = drafter.begin(models["qwen3"].new_state(WINDOW), "")
    drafter.follow(session, random_tokens(30, 4).tolist())
    assert all(token < 20 for token in drafter.propose([session], [8])[0].tokens)


# --- the same tokenizer -----------------------------------------------------------------------------------------

WORDS = Vocabulary(
    tokens=("a", "b", "ab", "<|im_end|>"),
    kinds=(TokenKind.NORMAL,) * 3 + (TokenKind.CONTROL,),
    merges=(("a", "b"),),
    pre="gpt-2",
    bos=None,
    eos=3,
    add_bos=False,
    stop_tokens=(3,),
    chat_template="{{ x }}",
)


def check(theirs: Vocabulary) -> None:
    check_same_words(Path("/models/big.gguf"), WORDS, Path("/models/small.gguf"), theirs)


def test_spare_ids_do_not_matter() -> None:
    check(WORDS)
    padded = (*WORDS.tokens, "[PAD]", ""), (*WORDS.kinds, TokenKind.UNUSED, TokenKind.UNUSED)
    check(replace(WORDS, tokens=padded[0], kinds=padded[1]))


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (("a", "b", "ba", "<|im_end|>"), r"differ in 1 ids, first in 2: `ba` in the one, `ab` in the other"),
        (("a", "b", "ab"), r"first in 3: nothing in the one, `<\|im_end\|>` in the other"),
    ],
)
def test_another_tokenizer_is_told_apart_with_both_names(tokens: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(CannotStart, match=sentence) as caught:
        check(replace(WORDS, tokens=tokens, kinds=WORDS.kinds[: len(tokens)]))
    assert str(caught.value).startswith("/models/small.gguf cannot draft for /models/big.gguf")
