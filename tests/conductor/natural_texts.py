"""Texts that repeat for a reason: tables, lists, data and code as models write them. None of them is a loop."""

from __future__ import annotations

import json
from typing import Final

_CITIES: Final = ("Oslo", "Bergen", "Tromsø", "Stavanger", "Drammen", "Bodø", "Molde", "Hamar", "Moss", "Halden")

TEXTS: Final = {
    "a table with a long ruler": "| city | rain | wind |\n|------|------|------|\n"
    + "".join(f"| {city} | {n * 7 % 90} mm | {n * 3 % 20} m/s |\n" for n, city in enumerate(_CITIES * 5)),
    "a table whose cells are mostly empty": "| day | early | late | night |\n|---|---|---|---|\n"
    + "".join(f"| {day} | - | - | - |\n" for day in range(1, 32)),
    "a numbered list": "".join(f"{n}. Check that step {n} has finished before you go on.\n" for n in range(1, 80)),
    "a list of equal questions": "".join(
        f"- [ ] {city}, day {day}: done?\n" for day in range(1, 7) for city in _CITIES
    ),
    "rows of data": json.dumps([{"id": n, "name": f"item {n}", "tags": [], "ok": True} for n in range(60)], indent=2),
    "a matrix of zeros": json.dumps([[0] * 12 for _ in range(12)]),
    "a ruler": "Results\n" + "-" * 120 + "\n" + "=" * 120 + "\n",
    "contents with dots": "".join(f"{n}. Chapter {'.' * 60} {n * 12}\n" for n in range(1, 30)),
    "tests that differ by a number": "".join(
        f"def test_case_{n}() -> None:\n    value = compute({n})\n    assert value is not None\n\n\n"
        for n in range(1, 40)
    ),
    "code with equal lines": "switch (kind) {\n"
    + "".join(f'    case "{city}":\n        count += 1;\n        break;\n' for city in _CITIES * 3)
    + "}\n" * 6,
    "a song with its refrain": "".join(
        f"Verse {n}: {city} lies under the snow, and the harbour is still.\n\n"
        + "Row on, row on, the night is long,\n" * 4
        + "\n"
        for n, city in enumerate(_CITIES)
    ),
    "hex": "\n".join(" ".join(f"{n * 37 % 256:02x}" for n in range(at, at + 16)) for at in range(0, 640, 16)),
    "a record repeated by mistake": ("INSERT INTO log (level, text) VALUES (1, 'started');\n" * 5 + "COMMIT;\n") * 4,
}
