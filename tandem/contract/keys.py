"""The text that API keys are written in: one reader for the gateway, which lets callers in, and for whoever warns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.contract.plan import KeySource, Plan

SHOWN: Final = 8  # of bad lines


@dataclass(frozen=True, slots=True)
class KeyLines:
    keys: tuple[tuple[str, str], ...]  # name, key
    bad: tuple[int, ...]  # numbers of the lines that are none, from 1


def read_keys(text: str) -> KeyLines:
    """`name:key` a line; empty lines and lines that begin with `#` are skipped. A key may hold colons."""
    keys, bad = list[tuple[str, str]](), list[int]()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, _, key = (part.strip() for part in line.partition(":"))
            if name and key:
                keys.append((name, key))
            else:
                bad.append(number)
    return KeyLines(tuple(keys), tuple(bad))


def warnings_now(plan: Plan) -> tuple[str, ...]:
    """The plan's, and what is to be said of its key file as it is now: the gateway reads that whenever it changes."""
    return (*plan.warnings, *key_file_warnings(plan.live.keys))


def key_file_warnings(source: KeySource) -> tuple[str, ...]:
    """Nothing where no file is named."""
    if source.file is None:
        return ()
    try:
        text = Path(source.file).read_text(encoding="utf-8")
    except FileNotFoundError:
        return (_closed("file", "is not there"),)
    except UnicodeDecodeError:
        return (_closed("file", "is not UTF-8 text"),)
    except OSError as error:
        return (_closed("file", f"cannot be read ({error.strerror})"),)
    return tuple(key_warnings(source, text))


def key_warnings(source: KeySource, text: str) -> Iterator[str]:
    """Sentences about the keys in `text`, which `source` names. No line and no key is quoted."""
    said, lines = "variable" if source.file is None else "file", read_keys(text)
    if not lines.keys:
        yield _closed(said, "holds no `name:key`")
        return
    if bad := lines.bad:
        where = f"line{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:SHOWN]))}"
        more = " and more" if bad[SHOWN:] else ""
        yield f"what `keys.{said}` names has no `name:key` on {where}{more}: who shows that key is not let in"
    names, keys = ({pair[part] for pair in lines.keys} for part in (0, 1))
    for listed, those in (("admin", source.admin), ("metrics_only", source.metrics_only)):
        for name in those:
            if name in keys:  # pasted where its name belongs: it is not said
                yield f"`keys.{listed}` holds a key itself, and has to hold its name"
            elif name not in names:
                yield f"`keys.{listed}` names `{name}`, and what `keys.{said}` names has no key of that name"


def _closed(said: str, what: str) -> str:
    return f"what `keys.{said}` names {what}: while that is so, nobody is let in"
