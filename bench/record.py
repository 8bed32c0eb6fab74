"""What every bench is told, and where it writes what it found: a file of that name, or one named by the time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.machine import PROJECT

RESULTS: Final = PROJECT / "bench" / "results"


def parser_of(module: str, doc: str | None) -> argparse.ArgumentParser:
    """With `--set` and `--out`; described by the first paragraph of the module's `doc`."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(doc or "").split("\n\n")[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `tandem up`")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a folder, or a .json file")
    return parser


def write_record(out: Path, name: str, record: Mapping[str, Any]) -> Path:
    """`out` is a `.json` file, or a folder, in which `name` and the time make the file's."""
    path = out if out.suffix == ".json" else out / f"{name}-{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
