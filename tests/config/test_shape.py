from __future__ import annotations

import pytest

from tandem.config.documents import (
    Appliance,
    Deciders,
    EngineOnBox,
    Fact,
    Figure,
    Profile,
    Residency,
    Slots,
)
from tandem.config.section import Section
from tandem.config.shape import closest, read_shape, section_at
from tandem.config.source import KeyPath, Layers, read_tree
from tandem.errors import Problem


def problems(text: str, model: type[Section] = Appliance) -> list[Problem]:
    tree, syntax = read_tree(text, "a.yaml")
    assert syntax == []
    return read_shape(Layers((tree,)), model)[1]


@pytest.mark.parametrize(
    ("model", "path", "section"),
    [
        (Appliance, (), Appliance),
        (Appliance, ("slots",), Slots),
        (Appliance, ("roles", "deciders"), Deciders),  # optional
        (Appliance, ("slots", "count"), None),
        (Appliance, ("nowhere",), None),
        (Profile, ("facts", 3), Fact),  # a list
        (Profile, ("weights", "in_memory", "int8"), Figure),  # by name
        (Residency, ("engines", "any", "peak"), Figure),
        (Residency, ("engines", "any"), EngineOnBox),
    ],
)
def test_the_section_at_a_path(model: type[Section], path: KeyPath, section: type[Section] | None) -> None:
    assert section_at(model, path) is section


def test_a_misspelt_required_key_is_one_problem() -> None:
    (problem,) = problems("roles: {narrator: {modle: x}}")
    assert problem.code == "unknown-key"
    assert problem.help == "did you mean `model`, which is required here?"


def test_a_missing_key_and_an_unrelated_one_are_two() -> None:
    assert sorted(problem.code for problem in problems("roles: {narrator: {zzz: x}}")) == ["missing-key", "unknown-key"]


def test_two_misspellings_do_not_hide_one_missing_key() -> None:
    found = problems(
        "box: {totl: 1 GiB, available: 1 GiB, cpus: 1}\nfloor: 1 B\nhard_floor: 1 B\nmargn: 1 B", Residency
    )
    assert sorted(problem.place.path for problem in found if problem.place) == ["box.totl", "margn"]


def test_a_key_from_another_section_is_sent_home() -> None:
    (problem,) = problems("limits: {side_window: 4096}")
    assert problem.help == "`side_window` belongs at `slots.side_window`"


def test_empty_sections_are_sections() -> None:
    assert problems("slots:\nmemory:\nroles:\n  narrator:\nlimits:\nkeys:\n") == []


def test_no_union_tag_is_in_a_path() -> None:
    (problem,) = problems("slots: {count: x}")  # an optional, bounded number: three layers of pydantic's own
    assert problem.place is not None
    assert problem.place.path == "slots.count"


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("side_windw", ["side_window", "count"], "side_window"),
        ("side-window", ["side_window"], "side_window"),
        ("PORT", ["port"], "port"),
        ("zzz", ["port"], None),
    ],
)
def test_the_closest_word(word: str, known: list[str], meant: str | None) -> None:
    assert closest(word, known) == meant
