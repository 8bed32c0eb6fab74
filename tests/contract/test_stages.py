"""How long the start of a process took, and what with."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tandem.contract import process
from tandem.contract.process import Stages


def test_the_first_stage_begins_with_the_process() -> None:
    script = (
        "import time; time.sleep(0.5); from tandem.contract.process import Stages as S; s = S(); s.ended('a'); print(s)"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True)
    match = re.fullmatch(r"(\d+\.\d) s \(a (\d+\.\d)\)\n", said)
    assert match is not None and match[1] == match[2]
    assert 0.5 <= float(match[2]) < 30


def test_stages_sum_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([101.0, 101.2, 104.0])
    monkeypatch.setattr(process, "_born", lambda: 100.0)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    stages = Stages()
    for name in ("runtime", "weights", "first token"):
        stages.ended(name)
    assert str(stages) == "4.0 s (runtime 1.0, weights 0.2, first token 2.8)"
