"""What the conductor asks and does, as running processes take it."""

from __future__ import annotations

from tandem.config.conducting import Conductor, Package, Question
from tandem.contract.plan import Asked, ClassPlan, Conducting, PackagePlan


def plan_conducting(conductor: Conductor) -> Conducting:
    return Conducting(
        decider_within=conductor.decider_within,
        model_within=conductor.model_within,
        confidence=conductor.confidence,
        checked=conductor.checked,
        questions=(*_class_question(conductor), *(_asked(id, each) for id, each in conductor.questions.items())),
        classes={name: ClassPlan(each.package, each.effort) for name, each in conductor.classes.items()},
        default=conductor.default,
        packages={name: _package(each) for name, each in conductor.packages.items()},
        efforts=dict(conductor.efforts),
    )


def _class_question(conductor: Conductor) -> tuple[Asked, ...]:
    """None where there is nothing to choose from."""
    meant = tuple((name, each.means) for name, each in conductor.classes.items() if each.means)
    return (Asked("class", "choice", conductor.question, meant, "class"),) if len(meant) > 1 else ()


def _asked(id: str, question: Question) -> Asked:
    match question.type:
        case "score":
            criteria = tuple((str(level), meaning) for level, meaning in enumerate(question.levels))
        case "noul":
            criteria = tuple((label, question.criteria.get(label, "")) for label in ("false", "true"))
        case _:
            criteria = tuple(question.criteria.items())
    return Asked(id, question.type, question.instructions, criteria, question.decides, dict(question.then))


def _package(package: Package) -> PackagePlan:
    sampling = package.sampling.model_dump(exclude_none=True)
    return PackagePlan(package.note.strip(), sampling, package.tools)
