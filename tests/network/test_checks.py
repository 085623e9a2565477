"""The network checks of `skerry doctor`."""

from __future__ import annotations

from pathlib import Path

from skerry.network.gateway.checks import checks, judge_host_wide

TIMESTAMPS, OPTIONS = "core/tstamp_allow_data", "core/optmem_max"


def host(place: Path, **values: str) -> Path:
    (place / "core").mkdir()
    for name, value in values.items():
        (place / "core" / name).write_text(f"{value}\n")
    return place


def test_socket_memory_check_names_the_setting_of_an_older_kernel(tmp_path: Path) -> None:
    found = judge_host_wide([TIMESTAMPS, OPTIONS], host(tmp_path, tstamp_allow_data="1", optmem_max="20480"))
    assert found.ok is None
    assert "net.core.tstamp_allow_data is 1" in found.detail
    assert (found.fix or "").startswith("sysctl -w net.core.tstamp_allow_data=0;")


def test_socket_memory_check_accepts_lower_values(tmp_path: Path) -> None:
    assert judge_host_wide([TIMESTAMPS, OPTIONS], host(tmp_path, tstamp_allow_data="0", optmem_max="10240")).ok


def test_socket_memory_check_ignores_settings_of_each_namespace(tmp_path: Path) -> None:
    assert judge_host_wide([], host(tmp_path, tstamp_allow_data="1")).ok


def test_network_checks_report_this_host() -> None:
    assert [check.name for check in checks()] == ["egress", "socket memory"]
