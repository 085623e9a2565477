"""The AppArmor profile: its rules, hosts with and without AppArmor, and the profile that a sandbox really has."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support.containers import CONFIG, HOST, Container

from skerry.runtimes import guarantees, posture, security_modules, spec
from skerry.runtimes.security_modules import SecurityModules, apparmor_profile

NAME, TEXT = apparmor_profile(spec.CAPABILITIES)


def host(root: Path, *, enabled: str = "Y", own: str = "unconfined", loaded: str = "", selinux: str = "") -> Path:
    """Write the files with which a kernel describes its security modules."""
    for path, text in (
        ("sys/module/apparmor/parameters/enabled", enabled), ("proc/self/attr/apparmor/current", own),
        ("sys/kernel/security/apparmor/profiles", loaded), ("sys/fs/selinux/enforce", selinux),
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    return root


def state(root: Path, *, load: bool = False) -> SecurityModules:
    return security_modules.security_modules(spec.CAPABILITIES, root, load=load)


def test_profile_is_accepted_by_the_compiler() -> None:
    parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
    if parser is None:
        pytest.skip("apparmor_parser is not installed")
    for text, accepted in ((TEXT, True), (TEXT.replace("  file,", "  files,"), False)):
        done = subprocess.run([parser, "--skip-kernel-load", "--skip-cache"], input=text.encode(), capture_output=True)
        assert (done.returncode == 0) == accepted, done.stderr


def test_profile_allows_no_mount_no_policy_change_and_no_other_capability() -> None:
    rules = [line.strip() for line in TEXT.splitlines()[2:-1]]
    assert not [rule for rule in rules if rule.startswith(("mount", "remount", "umount", "pivot_root", "change_"))]
    capabilities = {rule.removeprefix("capability ").rstrip(",") for rule in rules if rule.startswith("capability")}
    assert capabilities == {name.removeprefix("CAP_").lower() for name in spec.CAPABILITIES}
    assert "deny /proc/sys/** wkl," in rules
    assert "deny /sys/kernel/security/** mrwklx," in rules
    sending = [rule for rule in rules if rule.startswith(("signal (send", "ptrace (read,"))]
    assert sending
    assert all(rule.endswith(f"peer={NAME},") for rule in sending)


def test_other_rules_have_another_name() -> None:
    assert apparmor_profile(spec.CAPABILITIES[1:])[0] != NAME
    assert apparmor_profile(spec.CAPABILITIES) == (NAME, TEXT)


@pytest.mark.parametrize(
    ("files", "profile", "detail"),
    [
        ({"loaded": f"docker-default (enforce)\n{NAME} (enforce)"}, NAME, f"profile {NAME}"),
        ({"enabled": "N"}, None, "not available: this kernel runs without AppArmor"),
        ({"enabled": ""}, None, "not available: this kernel runs without AppArmor"),
        ({"own": "docker-default (enforce)"}, None, "not available: the server itself is confined by docker-default"),
        ({"own": ""}, None, "not available: the server itself is confined by a profile"),
    ],
)
def test_state_of_a_host_is_reported(tmp_path: Path, files: dict[str, str], profile: str | None, detail: str) -> None:
    found = state(host(tmp_path, **files))
    assert found.profile == profile
    assert found.apparmor.startswith(detail)


def test_profile_that_only_complains_does_not_count_as_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_modules, "_SBIN", "/nonexistent")
    found = state(host(tmp_path, loaded=f"{NAME} (complain)\n{NAME}x (enforce)"))
    assert (found.profile, found.fix) == (None, "apparmor")
    assert found.apparmor == "not available: apparmor_parser is not installed"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'AppArmor parser error: broken' >&2; exit 1", "AppArmor parser error: broken"),
        ("exit 2", "apparmor_parser ended with 2"),
        ("cat >/dev/null", "the kernel does not list it"),
    ],
)
def test_profile_that_cannot_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    (tmp_path / "apparmor_parser").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "apparmor_parser").chmod(0o755)
    monkeypatch.setattr(security_modules, "_SBIN", f"{tmp_path}:/usr/bin:/bin")
    found = state(host(tmp_path / "host"), load=True)
    assert found.profile is None
    assert found.apparmor.startswith(f"not available: the profile could not be loaded: {reason}")


@pytest.mark.parametrize(
    ("enforce", "said"), [("1", "SELinux is enforcing"), ("0", "SELinux is permissive"), ("", "without SELinux")]
)
def test_selinux_is_reported(tmp_path: Path, enforce: str, said: str) -> None:
    assert said in state(host(tmp_path, enabled="N", selinux=enforce)).selinux


def test_spec_and_isolation_name_the_profile_only_if_it_is_loaded() -> None:
    assert "apparmorProfile" not in spec.build(CONFIG, HOST)["process"]
    confined = replace(HOST, apparmor=NAME)
    assert spec.build(CONFIG, confined)["process"]["apparmorProfile"] == NAME
    modules = SecurityModules(NAME, f"profile {NAME}", "not available")
    shown = guarantees.isolation(CONFIG, confined, "crun", "1", "v2", modules)
    assert "apparmor_profile" in shown.guarantees
    assert shown.details["apparmor"] == f"profile {NAME}"
    without = guarantees.isolation(CONFIG, HOST, "crun", "1", "v2", SecurityModules(None, "not available: no", ""))
    assert "apparmor_profile" not in without.guarantees
    assert without.details["apparmor"] == "not available: no"


async def test_sandbox_without_the_expected_profile_is_found(container: Container) -> None:
    assert posture.lacks(container.config, container.init.pid) == []
    missing = posture.lacks(container.config, container.init.pid, "skerry-sandbox-other")
    assert [one.partition(" is ")[0] for one in missing] == ["the AppArmor profile"]


async def test_every_process_of_a_sandbox_has_the_profile(container: Container) -> None:
    modules = security_modules.security_modules(spec.CAPABILITIES)
    assert container.runtime.isolation(container.config).details["apparmor"] == modules.apparmor
    if modules.profile is None:
        pytest.skip(f"AppArmor: {modules.apparmor}")
    assert security_modules.profile_of(container.init.pid) == modules.profile
    inside = await container.run("cat", "/proc/self/attr/apparmor/current")
    assert inside.strip() == f"{modules.profile} (enforce)"
