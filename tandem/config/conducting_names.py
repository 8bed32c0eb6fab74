"""What is right in each line of the conductor's section, but not between them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandem.config.conducting import Conductor, Question
from tandem.config.shape import closest, words
from tandem.config.source import KeyPath, Layers
from tandem.errors import Problem

CLASS = "class"  # the id of the question that is always asked


def check_conductor(conductor: Conductor, layers: Layers) -> Iterator[Problem]:
    """Asked of a section that is switched off, too: it is switched on by one word."""
    yield from _known("class", conductor.default, conductor.classes, ("conductor", "default"), layers)
    for name, each in conductor.classes.items():
        path = ("conductor", "classes", name)
        yield from _known("package", each.package, conductor.packages, (*path, "package"), layers)
        if each.effort is not None:
            yield from _known("effort", each.effort, conductor.efforts, (*path, "effort"), layers)
    for id, question in conductor.questions.items():
        yield from _question(id, question, conductor, ("conductor", "questions", id), layers)


def _question(id: str, question: Question, conductor: Conductor, path: KeyPath, layers: Layers) -> Iterator[Problem]:
    if id == CLASS:
        help = "its words are `conductor.question`, its answers the classes that say what they mean"
        yield Problem("not-allowed", "the question `class` is asked anyway", layers.nearest(path), (), help)
    answers, wrong = _answers(question)
    if wrong:
        yield Problem("missing-key", wrong, layers.nearest(path))
        return
    for answer in question.then:
        yield from _known("answer", answer, answers, (*path, "then", answer), layers)
    if question.decides == "nothing":
        return
    known: Iterable[str] = conductor.packages if question.decides == "package" else conductor.efforts
    for answer, name in question.then.items():
        yield from _known(question.decides, name, known, (*path, "then", answer), layers)
    if not any(question.then.get(answer, answer) in known for answer in answers):
        message = f"no answer of this question stands for a {question.decides}"
        yield Problem("missing-key", message, layers.nearest(path), (f"known: {words(known)}",), "add `then:`")


def _answers(question: Question) -> tuple[tuple[str, ...], str]:
    """Its possible answers, and what is wrong with how they are said."""
    match question.type:
        case "choice":
            lacking = len(question.criteria) < 2 or bool(question.levels)
            return tuple(question.criteria), "a `choice` has two or more labels in `criteria`" if lacking else ""
        case "score":
            lacking = len(question.levels) < 2 or bool(question.criteria)
            levels = tuple(str(level) for level in range(len(question.levels)))
            return levels, "a `score` has two or more `levels`" if lacking else ""
        case _:
            odd = bool(question.levels) or not question.criteria.keys() <= {"true", "false"}
            return ("false", "true"), "a `noul` has `true` and `false` in `criteria`, or nothing" if odd else ""


def _known(what: str, name: str, known: Iterable[str], path: KeyPath, layers: Layers) -> Iterator[Problem]:
    names = list(known)
    if name in names:
        return
    near = closest(name, names)
    yield Problem(
        "not-found",
        f"there is no {what} `{name}`",
        layers.nearest(path),
        (f"known: {words(names)}",),
        f"did you mean `{near}`?" if near else None,
    )
