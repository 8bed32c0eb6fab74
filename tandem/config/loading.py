"""Reads every document an appliance names, in phases: syntax, shape, names. The fourth, fit, is the planner's.

A document that fails a phase is left out of the next; everything the others show is still reported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.config.cautions import find_cautions
from tandem.config.documents import Appliance, Profile, Residency
from tandem.config.names import check_names, drafting_model
from tandem.config.paths import is_file, under
from tandem.config.settings import read_overrides, without_keys
from tandem.config.shape import closest, read_shape, words
from tandem.config.source import Layers, Tree, read_tree
from tandem.config.weights import Located, locate, locate_source
from tandem.errors import DocumentError, Place, Problem

SHIPPED: Final = Path(__file__).resolve().parents[2]  # profiles/ and residency/ that come with us


@dataclass(frozen=True, slots=True)
class Documents:
    """Everything the documents say, resolved between them; the planner adds the box."""

    path: Path  # appliance.yaml, absolute
    appliance: Appliance
    profile_name: str
    profile: Profile
    residency_name: str
    residency: Residency
    weights: Located
    state: Path
    files: tuple[Path, ...]  # every document that was read
    layers: Layers  # the appliance under its overrides: where a finding about it points
    cautions: tuple[str, ...] = ()  # what is allowed, and seldom meant
    draft_weights: Path | None = None  # absolute; None where no model drafts

    def place(self, *path: str) -> Place | None:
        """Where the appliance (or a variable or flag over it) says `path`, or the section around it; else None."""
        return self.layers.nearest(path)


def load(appliance: Path, overrides: Sequence[str] = (), environment: Mapping[str, str] = os.environ) -> Documents:
    """The documents of `appliance`, under `TANDEM_*` variables and `overrides` (`section.key=value`).

    Raises `DocumentError` with every problem, sorted by place, and the files that were read or looked for.
    """
    reader = _Reader(appliance.absolute().parent)
    documents = reader.read(appliance.absolute(), overrides, environment)
    if reader.problems or documents is None:
        raise DocumentError(tuple(reader.sorted()), tuple(str(file) for file in reader.files))
    return documents


def read_box(name: str, base: Path) -> Residency:
    """A residency document alone, found as an appliance in the folder `base` would find it, with a `box` in it.

    Raises `DocumentError` as `load` does.
    """
    reader = _Reader(base.absolute())
    residency = reader.residency(name, None)
    if residency is not None and residency.box is None:
        reader.problems.append(Problem("missing-key", f"`{name}` declares no `box`: `total`, `available`, `cpus`"))
    if reader.problems or residency is None:
        raise DocumentError(tuple(reader.sorted()), tuple(str(file) for file in reader.files))
    return residency


def check(path: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Checks one document, of the kind its folder says (`profiles/`, `residency/`, else an appliance); says the kind.

    An appliance is checked with all it names; a profile whose name begins with `_` may lack what its heirs bring.
    Raises `DocumentError` as `load` does.
    """
    path = path.absolute()
    kind = {"profiles": "profile", "residency": "residency"}.get(path.parent.name, "appliance")
    if kind == "appliance":
        load(path, environment=environment)
        return kind
    reader = _Reader(path.parent.parent)
    if kind == "profile":
        reader.profile(str(path), None)
        if path.name.startswith("_"):
            reader.problems = [problem for problem in reader.problems if problem.code != "missing-key"]
    else:
        reader.residency(str(path), None)
    if reader.problems:
        raise DocumentError(tuple(reader.sorted()), tuple(str(file) for file in reader.files))
    return kind


@dataclass(slots=True)
class _Reader:
    base: Path  # the folder of appliance.yaml
    problems: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def read(self, path: Path, flags: Sequence[str], environment: Mapping[str, str]) -> Documents | None:
        tree = self._tree(path, None)
        if tree is None:
            return None
        over, problems = read_overrides(flags, without_keys(environment, flags, tree))
        self.problems += problems
        layers = Layers((*over, tree))
        appliance, problems = read_shape(layers, Appliance)
        self.problems += problems

        profile_name = _word(layers, "profile")
        residency_name = _word(layers, "residency")
        profile = self._named_profile(profile_name, layers.nearest(("profile",)))
        residency = self.residency(residency_name, layers.nearest(("residency",)))
        if appliance is None or profile is None or residency is None:
            return None

        self.problems += check_names(appliance, profile, residency, layers, self.base, environment)
        state = under(self.base, appliance.state).absolute()
        try:
            weights = locate(profile.weights, self.base, state)
            source = drafting_model(appliance, profile)
            draft_weights = None if source is None else locate_source(source, self.base, state).absolute()
        except ValueError as error:
            self.problems.append(Problem("bad-text", f"{error}", layers.nearest(("profile",))))
            return None
        return Documents(
            path, appliance, _stem(profile_name), profile, _stem(residency_name), residency,
            weights, state, tuple(self.files), layers, find_cautions(appliance, environment), draft_weights,
        )  # fmt: skip

    def _named_profile(self, name: str, place: Place | None) -> Profile | None:
        if _stem(name).startswith("_"):
            self._add("not-allowed", f"`{name}` is there to be extended", place, (), "name a profile that extends it")
            return None
        return self.profile(name, place)

    def profile(self, name: str, place: Place | None) -> Profile | None:
        """The profile and everything it extends, the one asked for strongest."""
        trees: list[Tree] = []
        seen: list[Path] = []
        base = self.base
        while True:
            path = self._find("profiles", name, base, place)
            if path is None:
                return None
            if path in seen:
                chain = " -> ".join(step.stem for step in (*seen[seen.index(path) :], path))
                self._add("cycle", "this profile extends itself", place, (chain,))
                return None
            seen.append(path)
            tree = self._tree(path, place)
            if tree is None:
                return None
            trees.append(tree)
            extends = tree.plain().get("extends")
            if not isinstance(extends, str):
                break
            name, base, place = extends, path.parent, tree.place(("extends",))
        profile, problems = read_shape(Layers(tuple(trees)), Profile)
        self.problems += problems
        return profile

    def residency(self, name: str, place: Place | None) -> Residency | None:
        path = self._find("residency", name, self.base, place)
        tree = self._tree(path, place) if path is not None else None
        if tree is None:
            return None
        residency, problems = read_shape(Layers((tree,)), Residency)
        self.problems += problems
        return residency

    def _find(self, folder: str, name: str, base: Path, place: Place | None) -> Path | None:
        """The document `name`: a path; else beside the one that names it, in the appliance's folder, or ours."""
        if "/" in name or name.endswith((".yaml", ".yml")):
            candidates = [under(base, name).absolute()]
        else:
            folders = [*([base] if base != self.base else []), self.base / folder, SHIPPED / folder]
            candidates = [home / f"{name}.yaml" for home in dict.fromkeys(folders)]
        for path in candidates:
            if is_file(path):
                return path
        self.files.append(candidates[0])  # so that creating it is seen
        known = sorted({file.stem for path in candidates for file in path.parent.glob("*.yaml")} - {""})
        known = [stem for stem in known if not stem.startswith("_")]
        near = closest(_stem(name), known)
        self._add(
            "not-found",
            f"there is no document `{name}` in {folder}/",
            place,
            (f"there are {words(known)}" if known else f"looked for {candidates[0]}",),
            f"did you mean `{near}`?" if near else None,
        )
        return None

    def _tree(self, path: Path, place: Place | None) -> Tree | None:
        self.files.append(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            self._add(
                "not-found",
                f"there is no {_shown(path)}",
                place,
                help="`tandem` reads `appliance.yaml` in the current directory, or the path you name",
            )
            return None
        except UnicodeDecodeError:
            self._add("syntax", f"{_shown(path)} is not UTF-8 text", place)
            return None
        except OSError as error:
            self._add("not-found", f"{_shown(path)} cannot be read: {error.strerror}", place)
            return None
        tree, problems = read_tree(text, _shown(path))
        self.problems += problems
        return None if any(problem.code == "syntax" for problem in problems) else tree

    def _add(
        self, code: str, message: str, place: Place | None, notes: tuple[str, ...] = (), help: str | None = None
    ) -> None:
        self.problems.append(Problem(code, message, place, notes, help))

    def sorted(self) -> list[Problem]:
        """By file in the order they were read, then by place; what stands in no file comes first."""
        order = {_shown(file): index for index, file in enumerate(self.files)}

        def key(problem: Problem) -> tuple[int, int, int]:
            place = problem.place
            return (order.get(place.file, -1), place.line, place.column) if place else (-1, 0, 0)

        return sorted(self.problems, key=key)


def _stem(name: str) -> str:
    """A document's name without folder and suffix; a name may hold dots (`qwen3.8-27b`)."""
    return Path(name).name.removesuffix(".yml").removesuffix(".yaml")


def _word(layers: Layers, key: str) -> str:
    """A name that is needed before the appliance's shape is known to be good."""
    said = (tree.plain().get(key) for tree in layers.trees)
    word = next((value for value in said if value is not None), None)
    return word if isinstance(word, str) else str(Appliance.model_fields[key].default)


def _shown(path: Path) -> str:
    """As the user would write it: relative to where they are, when it lies below. A daemon is nowhere: in `/`."""
    try:
        here = Path.cwd()
        return str(path) if here == here.parent else str(path.relative_to(here))
    except (OSError, ValueError):
        return str(path)
