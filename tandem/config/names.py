"""The names phase: what is right in each document but not between them, or names what is not there.

Looks at files and changes nothing; the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.config.conducting_names import check_conductor
from tandem.config.documents import Appliance, Claims, Draft, Keys, Profile, Residency
from tandem.config.paths import is_directory, is_file, is_path_like, under
from tandem.config.shape import words
from tandem.config.source import Layers, without_secrets
from tandem.config.weights import is_hub_directory, locate_model
from tandem.errors import Problem
from tandem.units import format_bytes


def check_names(
    appliance: Appliance,
    profile: Profile,
    residency: Residency,
    layers: Layers,
    base: Path,
    environment: Mapping[str, str],
) -> list[Problem]:
    return [
        *_engine(appliance, profile, layers),
        *_windows(appliance, profile, layers),
        *_floors(appliance, residency, layers),
        *_claims(appliance, residency.claims, layers),
        *_keys(appliance, layers, base, environment),
        *_token(appliance, layers),
        *_weights(profile, layers, base),
        *_drafting(appliance.draft.over(profile.draft), layers, base),
        *_state(appliance, layers, base),
        *_roles(appliance, layers, base),
        *check_conductor(appliance.conductor, layers),
    ]


def _engine(appliance: Appliance, profile: Profile, layers: Layers) -> list[Problem]:
    problems = []
    if appliance.engine.backend == "vllm":
        problems.append(
            Problem(
                "not-yet",
                "this version runs its own engine only; `vllm` is a later one's",
                layers.nearest(("engine", "backend")),
                (),
                "write `backend: native`, or leave it out",
            )
        )
    compute = appliance.engine.compute
    if compute is not None and compute not in profile.weights.in_memory:
        problems.append(
            Problem(
                "not-allowed",
                f"`{compute}` is no number format this profile is served in",
                layers.nearest(("engine", "compute")),
                (f"allowed: {words(profile.weights.in_memory)}",),
            )
        )
    return problems


def _windows(appliance: Appliance, profile: Profile, layers: Layers) -> list[Problem]:
    side = appliance.slots.side_window
    if side is None or side <= profile.window:
        return []
    return [
        Problem(
            "out-of-range",
            f"a side slot of {side:,} rows is longer than the model's window of {profile.window:,}",
            layers.nearest(("slots", "side_window")),
            (),
            f"write {profile.window} or less",
        )
    ]


def _floors(appliance: Appliance, residency: Residency, layers: Layers) -> list[Problem]:
    floor = appliance.memory.floor if appliance.memory.floor is not None else residency.floor
    hard = appliance.memory.hard_floor if appliance.memory.hard_floor is not None else residency.hard_floor
    if hard <= floor:
        return []
    written = "hard_floor" if appliance.memory.hard_floor is not None else "floor"
    return [
        Problem(
            "out-of-range",
            f"the hard floor of {format_bytes(hard)} is above the floor of {format_bytes(floor)}",
            layers.nearest(("memory", written)),
            ("requests are refused at the hard floor; planning stops above it, at the floor",),
        )
    ]


def _claims(appliance: Appliance, claims: Claims, layers: Layers) -> list[Problem]:
    roles = appliance.roles
    declared = (
        ("deciders", roles.deciders, claims.decider),
        ("narrator", roles.narrator, claims.narrator),
        ("shadow_reader", roles.shadow_reader, claims.shadow_reader),
    )
    return [
        Problem(
            "missing-key",
            f"nobody says how much memory `roles.{key}` takes",
            layers.place(("roles", key), on_key=True),
            (f"the residency document `{appliance.residency}` has no claim for it",),
            "add `claim:` with its measured size; `tandem residency measure` finds it",
        )
        for key, role, claim in declared
        if role is not None and role.claim is None and claim is None
    ]


def _roles(appliance: Appliance, layers: Layers, base: Path) -> list[Problem]:
    """Models that are named in a way that can name nothing. Whether they are there is looked at later."""
    problems = []
    for key in ("deciders", "narrator", "shadow_reader"):
        role = getattr(appliance.roles, key)
        try:
            if role is not None:
                locate_model(role.model, base, under(base, appliance.state))
        except ValueError as error:
            problems.append(Problem("bad-text", str(error), layers.nearest(("roles", key, "model"))))
    return problems


def _keys(appliance: Appliance, layers: Layers, base: Path, environment: Mapping[str, str]) -> list[Problem]:
    keys = appliance.keys
    if keys.file is not None and keys.variable is not None:
        return [
            Problem(
                "not-allowed",
                "`file` and `variable` cannot both say where keys are read",
                layers.nearest(("keys", "variable")),
                (),
                "keep one of them",
            )
        ]
    listed = "admin" if keys.admin else "metrics_only"
    if (keys.admin or keys.metrics_only) and keys.file is None and keys.variable is None:
        return [_no_keys(f"`{listed}` names keys, but nothing says where keys are read", ("keys", listed), layers)]
    if set(keys.admin) & set(keys.metrics_only):
        return [
            Problem(
                "not-allowed",
                "a key that opens everything cannot be for the metrics alone",
                layers.nearest(("keys", "metrics_only")),
                (),
                "keep its name on one of the lists",
            )
        ]
    # The variable is not said, nor what does not look like a file: people paste the key itself where its name belongs.
    if keys.variable is not None and not environment.get(keys.variable):
        return [
            _no_keys("the environment variable that `keys.variable` names is not set", ("keys", "variable"), layers)
        ]
    if keys.file is None:
        return []
    path = under(base, keys.file)
    wrong = _wrong_key_file(path, f": {path}" if is_path_like(without_secrets(keys.file)) else "")
    return [] if wrong is None else [_no_keys(wrong, ("keys", "file"), layers)]


def _wrong_key_file(path: Path, shown: str) -> str | None:
    """Why no keys can be read from it; None when they can. `shown` is the path as it may be said."""
    if is_directory(path):
        return f"`keys.file` names a directory, not a file{shown}"
    if not is_file(path):
        return f"the file that `keys.file` names is not there{shown}"
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return f"the file that `keys.file` names is not UTF-8 text{shown}"
    except OSError as error:
        return f"the file that `keys.file` names cannot be read, {error.strerror}{shown}"
    return None


def _token(appliance: Appliance, layers: Layers) -> list[Problem]:
    """Where the token of `downloads` is read. It is looked at when something is fetched, not before."""
    if appliance.downloads.token_file is None or appliance.downloads.token_variable is None:
        return []
    message = "`token_file` and `token_variable` cannot both say where the token is read"
    return [Problem("not-allowed", message, layers.nearest(("downloads", "token_file")), (), "keep one of them")]


def _no_keys(message: str, path: tuple[str, str], layers: Layers) -> Problem:
    notes = ("without its keys the API would be open, so nothing starts",)
    return Problem("not-found", message, layers.nearest(path), notes, Keys.remark)


def _weights(profile: Profile, layers: Layers, base: Path) -> list[Problem]:
    weights = profile.weights
    kind, _, path = weights.source.partition(":")
    if kind == "path" and (weights.sha256 or weights.size) and is_directory(under(base, path)):
        message = f"`sha256` and `size` prove one file, and this profile's weights are a directory: {path}"
        help = "leave both out: the engine compares the directory's headers with its config.json before it reads"
        return [Problem("not-allowed", message, layers.nearest(("profile",)), (), help)]
    whole = is_hub_directory(weights.source)
    if whole and (weights.sha256 or weights.size):
        message = "`sha256` and `size` prove one file, and this profile's weights are a directory of a hub"
        help = "leave both out: the commit in `source` pins it, and the hub states what each of its files is"
        return [Problem("not-allowed", message, layers.nearest(("profile",)), (), help)]
    if weights.source.startswith("hub:") and weights.sha256 is None and not whole:
        message = "this profile's weights come from a hub and pin no `sha256`"
        help = "add the file's `sha256` to the profile: what is fetched is proved by it"
    elif profile.serving.compute not in weights.in_memory:
        message = f"this profile does not say what its weights take in `{profile.serving.compute}`"
        help = f"add `{profile.serving.compute}:` to `weights.in_memory` in the profile"
    else:
        return []
    return [Problem("missing-key", message, layers.nearest(("profile",)), (), help)]


def drafting_model(appliance: Appliance, profile: Profile) -> str | None:
    """The source of the weights of a model that guesses; None where none does."""
    draft = appliance.draft.over(profile.draft)
    return None if draft.enabled is False or draft.model.enabled is False else draft.model.weights


def _drafting(draft: Draft, layers: Layers, base: Path) -> list[Problem]:
    """Of a section that is switched off nothing is asked."""
    if draft.enabled is False:
        return []
    problems = []
    corpus, model = draft.lookup.corpus, draft.model
    if draft.lookup.enabled is not False and corpus is not None and not is_file(under(base, corpus)):
        message = f"there is no text to look up at {under(base, corpus)}"
        problems.append(Problem("not-found", message, layers.nearest(("draft", "lookup", "corpus"))))
    place = layers.nearest(("draft", "model"))
    if model.enabled and model.weights is None:
        problems.append(
            Problem("missing-key", "no weights are named for the model that guesses", place, (), "add `weights:`")
        )
    if model.enabled is not False and model.weights is not None and model.in_memory is None:
        message = "nobody says how much memory the model that guesses takes"
        help = "add `in_memory:` with its size, the rows of all slots included"
        problems.append(Problem("missing-key", message, place, (), help))
    return problems


def _state(appliance: Appliance, layers: Layers, base: Path) -> list[Problem]:
    state = under(base, appliance.state)
    if "%" not in str(state):
        return []
    message = f"the state directory {state} has a `%` in its name, which supervisord reads as its own"
    return [Problem("bad-text", message, layers.nearest(("state",)), (), "write `state:` with another directory")]
