"""Where previews are served, and what their addresses are."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from skerry.config import Settings, load
from skerry.engine import preview_listener
from skerry.engine.database import Database
from skerry.engine.preview_listener import Addresses, PreviewListener
from skerry.engine.previews import Previews
from skerry.engine.reach import Reach
from skerry.errors import Conflict, InvalidRequest


def settings(tmp_path: Path, **flags: str) -> Settings:
    given = {f"preview.{name}": value for name, value in flags.items()}
    return load(flags={"state_dir": str(tmp_path), **given}, environ={}, operator_file=tmp_path / "none")


async def opened(made: Settings) -> PreviewListener:
    listener = PreviewListener(made)
    await listener.open()
    return listener


async def test_the_port_is_the_same_after_a_restart(tmp_path: Path) -> None:
    made = settings(tmp_path, listen="127.0.0.1:0")
    first = await opened(made)
    port = first.addresses.port
    first.close()
    second = await opened(made)
    assert second.addresses.port == port
    second.close()


async def test_another_setting_is_not_answered_with_the_old_port(tmp_path: Path) -> None:
    first = await opened(settings(tmp_path, listen="127.0.0.1:0"))
    port = first.addresses.port
    first.close()
    second = await opened(settings(tmp_path, listen="127.0.0.2:0"))
    assert (second.addresses.host, second.addresses.port == port) == ("127.0.0.2", False)
    second.close()


async def test_a_taken_port_makes_way_and_the_next_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview_listener, "_PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        listener = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
        got = listener.addresses.port
        assert got != wanted
        listener.close()
    again = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
    assert again.addresses.port == got  # links were given out with it
    again.close()


async def test_a_port_that_is_anothers_on_ipv6_is_taken_too(tmp_path: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        wanted = taken.getsockname()[1]
        listener = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
        assert listener.addresses.port != wanted
        listener.close()


async def test_none_means_nowhere(tmp_path: Path) -> None:
    listener = await opened(settings(tmp_path, listen="none"))
    assert listener.socket is None
    with pytest.raises(Conflict, match="not served here"):
        _ = listener.addresses


async def test_a_new_worker_knows_the_previews_before_anybody_can_ask_it_for_one(tmp_path: Path) -> None:
    database, told = Database(tmp_path / "state.db"), list[str]()
    with database.transaction() as cursor:
        for port in (80, 81):
            cursor.execute("INSERT INTO previews VALUES ('sb-aaaaaaaaaa', ?, 'pv-a', 0, 'token', 0, NULL)", (port,))
    lives: Any = {"sb-aaaaaaaaaa": object()}
    none: Any = None
    previews = Previews(PreviewListener(settings(tmp_path, listen="127.0.0.1:0")), none, lives, Reach(none), none)
    await previews.begin(database, lambda message, _: told.append(type(message).__name__))
    previews.greet()
    assert told == ["Share", "Share", "Listen"]
    previews.close()
    database.close()


@pytest.mark.parametrize(
    "flags",
    [{"listen": "7470"}, {"listen": "name:7470"}, {"domain": "a b"}, {"domain": "-x"}, {"domain": "a..b"},
     {"url": "https://example.com"}, {"url": "ftp://*.example.com"}, {"url": "https://*.example.com/path"},
     {"url": "https://*.*.example.com"}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, flags: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        PreviewListener(settings(tmp_path, **flags))


def test_addresses_are_as_people_reach_them() -> None:
    plain = Addresses("127.0.0.1", 7470, "localhost")
    assert plain.url("sb-x", 80) == "http://80-sb-x.localhost:7470/"
    assert plain.path_url("sb-x", 80) == "http://127.0.0.1:7470/-/80-sb-x/"
    assert (plain.domains, plain.secure) == (("localhost",), ())
    behind = Addresses("::", 7470, "lan", ("https", "preview.example.com:8443"))
    assert behind.url("sb-x", 80) == "https://80-sb-x.preview.example.com:8443/"
    assert behind.path_url("sb-x", 80) == "http://[::1]:7470/-/80-sb-x/"
    assert behind.domains == ("lan", "preview.example.com", "localhost")
    assert behind.secure == ("preview.example.com",)
