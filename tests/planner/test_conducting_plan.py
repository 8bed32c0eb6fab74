"""What the conductor's section becomes for running processes."""

from __future__ import annotations

import msgspec

from tandem.config.conducting import CLASSES, Class, Conductor, Package, PackageSampling, Question
from tandem.contract.plan import Asked, ClassPlan, Conducting, PackagePlan
from tandem.planner.conducting import plan_conducting


def test_as_shipped_the_class_is_asked_for_by_what_classes_mean() -> None:
    conducting = plan_conducting(Conductor())
    (asked,) = conducting.questions
    assert (asked.id, asked.kind, asked.decides) == ("class", "choice", "class")
    assert dict(asked.criteria) == {name: each.means for name, each in CLASSES.items() if each.means}
    assert conducting.default == "other" and "other" not in dict(asked.criteria)
    assert conducting.packages["precise"] == PackagePlan("", {"temperature": 0.2})
    assert all(each.package in conducting.packages for each in conducting.classes.values())
    assert all(each.effort in (None, *conducting.efforts) for each in conducting.classes.values())


def test_questions_become_what_deciders_are_asked() -> None:
    conductor = Conductor(
        classes={"a": Class(means="x"), "b": Class(means="y", package="brief", effort="low")},
        default="a",
        packages={"plain": Package(), "brief": Package(note=" Be brief.\n", sampling=PackageSampling(top_k=4))},
        questions={
            "level": Question(
                type="score", instructions="?", levels=("low", "high"), decides="effort", then={"0": "low"}
            ),
            "holds": Question(type="noul", instructions="It rains.", criteria={"true": "drops"}),
            "which": Question(type="choice", instructions="?", criteria={"plain": "", "brief": ""}, decides="package"),
        },
    )
    conducting = plan_conducting(conductor)
    assert conducting.questions[1:] == (
        Asked("level", "score", "?", (("0", "low"), ("1", "high")), "effort", {"0": "low"}),
        Asked("holds", "noul", "It rains.", (("false", ""), ("true", "drops"))),
        Asked("which", "choice", "?", (("plain", ""), ("brief", "")), "package"),
    )
    assert conducting.classes["b"] == ClassPlan("brief", "low")
    assert conducting.packages["brief"] == PackagePlan("Be brief.", {"top_k": 4})


def test_one_class_is_nothing_to_ask_about_and_the_plan_keeps_it_all() -> None:
    conducting = plan_conducting(Conductor(classes={"a": Class(means="x")}, default="a"))
    assert conducting.questions == ()
    assert msgspec.json.decode(msgspec.json.encode(conducting), type=Conducting) == conducting
