from __future__ import annotations

from pathlib import Path

import pytest

from tandem.config.claims import claim_diff, with_claim
from tandem.config.documents import Residency
from tandem.config.shape import read_shape
from tandem.config.source import Layers, read_tree
from tandem.units import GIB, MIB

SHIPPED = sorted((Path(__file__).parents[2] / "residency").glob("*.yaml"))
FIGURE = '{size: 0.5 GiB, basis: measured, why: "a: b, c"}'
NEEDED = "floor: 1 GiB\nhard_floor: 512 MiB\nmargin: 512 MiB\n"


def read(text: str) -> Residency:
    tree, problems = read_tree(text, "mine.yaml")
    assert tree is not None and not problems
    residency, problems = read_shape(Layers((tree,)), Residency)
    assert residency is not None, problems
    return residency


@pytest.mark.parametrize(
    "claims",
    [
        "",
        "claims:\n  narrator: {size: 4 GiB, basis: estimate}\n",
        "claims:   # the roles\n  # of this one nobody knows\n  narrator:\n    size: 4 GiB\n\n    basis: estimate\n\n",
        "claims:\n    decider: {size: 3 GiB, basis: measured}\n\nreload: {after: 5s}\n",
        "claims: {decider: {size: 3 GiB, basis: measured}, narrator: {size: 4 GiB, basis: estimate}}\n",
        "claims: {}\n",
        "claims:\n",
    ],
)
def test_a_claim_takes_its_place_whatever_the_section_looks_like(claims: str) -> None:
    before = read(NEEDED + claims)
    after = read(with_claim(NEEDED + claims, "narrator", FIGURE))
    assert after.claims.narrator is not None
    assert (after.claims.narrator.size, after.claims.narrator.why) == (GIB // 2, "a: b, c")
    assert after.claims.decider == before.claims.decider
    assert after.reload == before.reload
    assert after.margin == 512 * MIB


@pytest.mark.parametrize("document", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("role", ["decider", "narrator", "shadow_reader"])
def test_all_else_of_a_shipped_document_stays(document: Path, role: str) -> None:
    text = document.read_text()
    after = with_claim(text, role, FIGURE)
    changed = set(after.splitlines()) - set(text.splitlines())
    assert changed <= {f"  {role}: {FIGURE}", "claims:"}
    before, now = read(text), read(after)
    assert now.claims.model_copy(update={role: None}) == before.claims.model_copy(update={role: None})
    assert now.model_copy(update={"claims": None}) == before.model_copy(update={"claims": None})


def test_a_diff_names_its_file_and_shows_the_line_that_goes() -> None:
    text = NEEDED + "claims:\n  narrator: {size: 4 GiB, basis: estimate}\n"
    diff = claim_diff(text, "narrator", FIGURE, "residency/mine.yaml")
    assert diff.splitlines()[:2] == ["--- a/residency/mine.yaml", "+++ b/residency/mine.yaml"]
    assert "-  narrator: {size: 4 GiB, basis: estimate}" in diff
    assert f"+  narrator: {FIGURE}" in diff


def test_nothing_to_change_is_no_diff() -> None:
    text = with_claim(NEEDED, "narrator", FIGURE)
    assert claim_diff(text, "narrator", FIGURE, "mine.yaml") == ""
