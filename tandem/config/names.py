"""The names phase: what is right in each document but not between them. Pure; the environment is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tandem.config.documents import Appliance, Claims, Profile, Residency
from tandem.config.shape import words
from tandem.config.source import Layers
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
            "add `claim:` with its measured size",
        )
        for key, role, claim in declared
        if role is not None and role.claim is None and claim is None
    ]


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
    if keys.variable is not None and not environment.get(keys.variable):
        return [
            Problem(
                "not-found",
                f"the environment variable `{keys.variable}` is not set",
                layers.nearest(("keys", "variable")),
                ("without it the API would be open, so nothing starts",),
            )
        ]
    if keys.file is not None and not (base / Path(keys.file).expanduser()).is_file():
        return [
            Problem(
                "not-found",
                "there is no such file",
                layers.nearest(("keys", "file")),
                (
                    f"looked for {base / Path(keys.file).expanduser()}",
                    "without it the API would be open, so nothing starts",
                ),
            )
        ]
    return []
