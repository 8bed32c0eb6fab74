"""The conductor's section of an appliance, and what it asks and does unless the document says otherwise."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tandem.config.quantities import Time
from tandem.config.section import Section, Switched
from tandem.units import Duration

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,39}$")]
Long = Annotated[str, Field(min_length=1, max_length=2000)]
Tokens = Annotated[int, Field(ge=0, le=1_000_000)]


class Question(Section):
    """One question about a new message of a user. Its answer may decide something; else it is only told in the
    journal."""

    type: Literal["choice", "score", "noul"] = Field(
        description="`choice`: one of several labels. `score`: levels from low to high. `noul`: whether a statement "
        "holds."
    )
    instructions: Long = Field(description="The question itself; of a `noul`, the statement.")
    criteria: dict[Name, str] = Field(
        default={}, description="Of a `choice`, its labels with what each means; of a `noul`, `true` and `false`."
    )
    levels: tuple[Long, ...] = Field(default=(), description="Of a `score`, what each level means, from the lowest.")
    decides: Literal["package", "effort", "nothing"] = Field(default="nothing", description="What its answer decides.")
    then: dict[str, Name] = Field(
        default={},
        description="Which package or effort an answer stands for, where it is not its name: of a score by level (`0`, "
        "`1`, ...), of a noul by `true` and `false`. An answer that stands for nothing decides nothing.",
    )


class Class(Section):
    """A kind of message, and how requests of that kind are served."""

    means: str = Field(
        default="", description="What such a message asks for; without it a class is never asked about, only a default."
    )
    package: Name = Field(default="plain", description="The package that shapes the request.")
    effort: Name | None = Field(default=None, description="How long the model may reason. Default: as it likes.")


class PackageSampling(Section):
    """How a package's requests are sampled. What a client says itself wins; a key left out changes nothing."""

    temperature: Annotated[float, Field(ge=0, le=5)] | None = Field(default=None, description="0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="Of the likeliest candidates.")
    top_k: Annotated[int, Field(ge=0)] | None = Field(default=None, description="0: all candidates.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="Of the likeliest's share.")
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = Field(default=None, description="1: none.")


class Package(Section):
    """What is done with a request."""

    note: str = Field(
        default="", description="Added to the user's message, behind an empty line; it stays there in later turns."
    )
    sampling: PackageSampling = Field(default=PackageSampling(), description="How its tokens are drawn.")
    tools: Literal["auto", "none", "required"] | None = Field(
        default=None, description="Whether the tools a client offers are used, where it does not say. Default: nothing."
    )


CLASSES: Final = {
    "talk": Class(means="small talk, an opinion or a short question of fact", effort="low"),
    "code": Class(means="writing, reading or repairing a program", package="precise", effort="medium"),
    "text": Class(means="a text to write, improve, shorten or translate", package="free", effort="low"),
    "problem": Class(means="a problem to think through: mathematics, planning, comparing", effort="high"),
    "other": Class(),
}
PACKAGES: Final = {
    "plain": Package(),
    "precise": Package(sampling=PackageSampling(temperature=0.2)),
    "free": Package(sampling=PackageSampling(temperature=0.9)),
}
EFFORTS: Final = {"none": 0, "low": 1024, "medium": 4096, "high": 16_384}


class Conductor(Switched):
    """Decides class, package and effort of a request before the model sees it. A decider is asked first, then the big
    model, and what nobody answered in time is the default's.

    A section that names `classes`, `packages` or `efforts` names all of them; left out, they are as shipped: the
    classes `talk`, `code`, `text`, `problem` and `other`, the packages `plain`, `precise` and `free`, the efforts
    `none`, `low`, `medium` and `high`."""

    renamed = {"timeout": "it is `decider_within` or `model_within`", "deciders": "it is `roles.deciders`"}
    enabled: bool = Field(default=False, description="Shape requests; off: every request runs as the client wrote it.")
    decider_within: Annotated[Time, Field(gt=0, le=60)] = Field(
        default=Duration(0.4), description="A decider that has not answered by then is not waited for."
    )
    model_within: Annotated[Time, Field(ge=0, le=60)] = Field(
        default=Duration(2.0),
        description="So long the big model gets for what a decider left open, when a slot is free; `0s`: never asked.",
    )
    confidence: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="A decider's answer that is less probable is not taken."
    )
    checked: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0,
        description="Share of the messages that a decider decided about which the big model is asked as well, off the "
        "path and for the journal: `tandem shadow report` holds deciders against it.",
    )
    question: Long = Field(
        default="What does the last message of the user ask for?", description="How the class is asked for."
    )
    classes: dict[Name, Class] = Field(default=CLASSES, description="Kinds of messages.")
    default: Name = Field(default="other", description="The class of a message that nobody could tell.")
    packages: dict[Name, Package] = Field(default=PACKAGES, description="What is done with requests.")
    efforts: dict[Name, Tokens] = Field(default=EFFORTS, description="The most tokens of thinking, by name.")
    questions: dict[Name, Question] = Field(default={}, description="What else is asked about a message.")
