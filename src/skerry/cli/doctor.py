"""doctor: what this host can isolate, what is missing, and the command that mends it."""

from __future__ import annotations

from typing import Any

import click

from skerry.cli import talk
from skerry.cli.session import Session, json_option, pass_session
from skerry.config import load

_MARKS = {True: "ok", False: "MISSING", None: "?"}


@click.command(short_help="What this host can isolate, and what it lacks.")
@json_option
@pass_session
def doctor(session: Session, as_json: bool) -> int:
    """Look at this host: what it can isolate, what is missing, what mends it. Exit code 125 if the wall can't stand."""
    checks = _checks(session)
    ok = all(check["ok"] is not False for check in checks)
    if as_json:
        talk.give_json({"ok": ok, "checks": checks})
    else:
        talk.give_table(("", "CHECK", "FOUND"), ((_MARKS[c["ok"]], c["name"], c["detail"]) for c in checks))
        for check in checks:
            if check["ok"] is not True and check["fix"]:
                talk.say(f"hint: {check['name']}: {check['fix']}")
    return 0 if ok else talk.WE_FAILED


def _checks(session: Session) -> list[dict[str, Any]]:
    settings = load()
    if session.server or settings["server"]:
        with session.client() as client:
            return list(client.doctor()["checks"])
    from skerry.engine.doctor import examine

    return [{"name": c.name, "ok": c.ok, "detail": c.detail, "fix": c.fix} for c in examine(settings)]
