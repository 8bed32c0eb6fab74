"""The plan's programs as supervisord reads them.

supervisord knows neither order nor readiness, and accepts a misspelt key in silence: this text is generated, never
edited. Only the director starts by itself, and is started again when it dies; the director starts everything else,
waits until it answers, and decides what a death means.
"""

from __future__ import annotations

import re
from typing import Final

from tandem.contract.plan import Plan, Program

_LOG_BYTES: Final = "20MB"
_LOG_BACKUPS: Final = 3
_NEVER_GIVEN_UP: Final = 1_000_000  # nobody else starts the director; supervisord waits a second longer each time
_VITAL_START: Final = 5  # seconds: supervisord reaps as late as 2 s, so less would count a dead director as started


def supervisord_programs(plan: Plan) -> str:
    """The text of `programs.conf` in the run directory. supervisord's environment has `TANDEM_LOGS`."""
    head = "; Generated from the plan. Edits are overwritten: edit appliance.yaml.\n"
    return head + "".join(_section(program, order) for order, program in enumerate(plan.programs))


def _section(program: Program, order: int) -> str:
    director = program.kind == "director"
    settings = {
        "command": " ".join(_word(word) for word in program.command),
        "environment": ",".join(f'{name}="{value}"' for name, value in program.environment),
        "priority": str(100 + order),
        "autostart": _switch(director),
        "autorestart": _switch(director),
        "startsecs": str(_VITAL_START if director else 0),
        "startretries": str(_NEVER_GIVEN_UP) if director else "0",
        "stopsignal": "TERM",
        "stopwaitsecs": str(round(program.stop_timeout)),
        "stopasgroup": _switch(not director),
        "killasgroup": _switch(not director),
        "redirect_stderr": "true",
        "stdout_logfile": f"%(ENV_TANDEM_LOGS)s/{program.name}.log",  # its value may hold what would end a line here
        "stdout_logfile_maxbytes": _LOG_BYTES,
        "stdout_logfile_backups": str(_LOG_BACKUPS),
    }
    lines = "".join(f"{key}={value}\n" for key, value in settings.items())
    return f"\n[program:{program.name}]\n{lines}"


def _switch(on: bool) -> str:
    return "true" if on else "false"


def _word(text: str) -> str:
    """One word of a command line. Backslashes, not quotes: ` ;` begins a comment even inside quotes."""
    return re.sub(r"([^\w@+=:,./-])", r"\\\1", text).replace("%", "%%") or "''"
