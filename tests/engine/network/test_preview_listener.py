"""The preview listener and the addresses of previews."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skerry.config import Settings, load
from skerry.engine.database import Database
from skerry.engine.network import preview_listener
from skerry.engine.network.preview_listener import Addresses, PreviewListener
from skerry.engine.network.previews import PreviewService
from skerry.errors import Conflict, InvalidRequest


def settings(tmp_path: Path, **flags: str) -> Settings:
    given = {f"preview.{name}": value for name, value in flags.items()}
    return load(flags={"state_dir": str(tmp_path), **given}, environ={}, operator_file=tmp_path / "none")


async def opened(made: Settings) -> PreviewListener:
    listener = PreviewListener(made)
    await listener.open()
    return listener


async def test_port_is_the_same_after_a_restart(tmp_path: Path) -> None:
    made = settings(tmp_path, listen="127.0.0.1:0")
    first = await opened(made)
    port = first.addresses.port
    first.close()
    second = await opened(made)
    assert second.addresses.port == port
    second.close()


async def test_changed_setting_does_not_reuse_the_old_port(tmp_path: Path) -> None:
    first = await opened(settings(tmp_path, listen="127.0.0.1:0"))
    port = first.addresses.port
    first.close()
    second = await opened(settings(tmp_path, listen="127.0.0.2:0"))
    assert (second.addresses.host, second.addresses.port == port) == ("127.0.0.2", False)
    second.close()


async def test_taken_port_is_replaced_and_the_next_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview_listener, "_BIND_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        listener = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
        got = listener.addresses.port
        assert got != wanted
        listener.close()
    again = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
    assert again.addresses.port == got  # links were given out with it
    again.close()


async def test_port_in_use_on_ipv6_counts_as_taken(tmp_path: Path) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        wanted = taken.getsockname()[1]
        listener = await opened(settings(tmp_path, listen=f"127.0.0.1:{wanted}"))
        assert listener.addresses.port != wanted
        listener.close()


async def test_none_disables_previews(tmp_path: Path) -> None:
    listener = await opened(settings(tmp_path, listen="none"))
    assert listener.socket is None
    with pytest.raises(Conflict, match="not served here"):
        _ = listener.addresses


async def test_new_worker_knows_the_previews_before_it_accepts_requests(tmp_path: Path) -> None:
    database, told = Database(tmp_path / "state.db"), list[str]()
    with database.transaction() as cursor:
        for port in (80, 81):
            cursor.execute(
                "INSERT INTO previews VALUES ('sb-aaaaaaaaaa', ?, 'pv-a', 0, 'token', 0, NULL, NULL)", (port,)
            )
    gateways: Any = SimpleNamespace(send=lambda message, _=(): told.append(type(message).__name__))
    registry: Any = SimpleNamespace(ids=lambda: {"sb-aaaaaaaaaa"})
    none: Any = None
    listener = PreviewListener(settings(tmp_path, listen="127.0.0.1:0"))
    previews = PreviewService(listener, database, gateways, registry, none, none)
    await previews.open()
    assert told == ["SharePreview", "SharePreview", "ListenPreviews"]
    previews.close()
    database.close()


@pytest.mark.parametrize(
    "flags",
    [{"listen": "7470"}, {"listen": "name:7470"}, {"domain": "a b"}, {"domain": "-x"}, {"domain": "a..b"},
     {"url": "https://example.com"}, {"url": "ftp://*.example.com"}, {"url": "https://*.example.com/path"},
     {"url": "https://*.*.example.com"}],
)  # fmt: skip
def test_invalid_settings_are_rejected(tmp_path: Path, flags: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        PreviewListener(settings(tmp_path, **flags))


def test_addresses_use_the_public_host_and_port() -> None:
    plain = Addresses("127.0.0.1", 7470, "localhost")
    assert plain.url("80-sb-x") == "http://80-sb-x.localhost:7470/"
    assert plain.path_url("80-sb-x") == "http://127.0.0.1:7470/-/80-sb-x/"
    assert (plain.domains, plain.secure) == (("localhost",), ())
    behind = Addresses("::", 7470, "lan", ("https", "preview.example.com:8443"))
    assert behind.url("80-sb-x") == "https://80-sb-x.preview.example.com:8443/"
    assert behind.path_url("80-sb-x") == "http://[::1]:7470/-/80-sb-x/"
    assert behind.domains == ("lan", "preview.example.com", "localhost")
    assert behind.secure == ("preview.example.com",)
