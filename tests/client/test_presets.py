"""Presets, read by asking the real package managers of this machine with made-up homes and settings."""

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

from skerry.cli.options.network import PRESETS
from skerry.client.presets import KNOWN, Machine, read_presets
from skerry.client.presets.cache import cached_answer
from skerry.client.presets.pip import parse_settings
from skerry.errors import InvalidRequest
from skerry.network.policy.rules import check_rules
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
        asks_an_index = {"--dry-run", "view", "fetch"} & set(argv)
        return None if asks_an_index else super().ask(*argv, here=here, variables=variables)


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


def test_unknown_preset_error_lists_the_known_ones(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match=r"'conda' not found") as caught:
        read_presets(["conda"], machine())
    assert caught.value.hint == f"known presets: {', '.join(KNOWN)}"
    with pytest.raises(InvalidRequest) as caught:
        read_presets(("pip,npm",))
    assert caught.value.hint == f"known presets: {', '.join(KNOWN)}; each is named by itself"
    assert KNOWN == PRESETS


def test_resolved_preset_is_unchanged(machine: Make) -> None:
    given = Preset(name="mine", allow=("a.example",))
    assert read_presets([given, given], machine()) == ((given,), ())
    assert read_presets([], machine()) == ((), ())


@pytest.mark.parametrize("name", KNOWN)
def test_missing_program_is_a_clear_error(name: str, machine: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"network.presets: {name}: {name} is not installed on this machine"):
        one(name, machine(PATH=str(tmp_path)))


@needs("pip")
def test_pip_indexes_are_allowed_and_configured_inside(machine: Make) -> None:
    here = machine(
        PIP_INDEX_URL="https://mirror.example/simple", PIP_EXTRA_INDEX_URL="http://other.example:8080/x file:///srv/x",
        PIP_FIND_LINKS="/opt/wheels https://links.example/w", PIP_TRUSTED_HOST="other.example:8080",
    )  # fmt: skip
    preset, secrets = one("pip", here)
    assert preset.allow == ("mirror.example:443", "other.example:8080", "links.example:443")
    assert preset.env == {
        "PIP_INDEX_URL": "https://mirror.example/simple", "PIP_EXTRA_INDEX_URL": "http://other.example:8080/x",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple", "UV_INDEX": "http://other.example:8080/x",
        "PIP_FIND_LINKS": "https://links.example/w", "PIP_TRUSTED_HOST": "other.example:8080",
    }  # fmt: skip
    assert (secrets, preset.proxy) == ((), None)


@needs("pip")
def test_pip_config_files_are_read_and_the_password_is_a_secret(machine: Make) -> None:
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
def test_token_in_place_of_a_user_name_is_used(machine: Make) -> None:
    for login, sent in (("t0ken", b"t0ken:"), ("me:short", b"me:short")):
        _, (secret,) = one("pip", machine(PIP_INDEX_URL=f"https://{login}@mirror.example/simple"))
        assert secret.header == "Authorization: Basic {}"
        assert base64.b64decode(secret.value) == sent


@needs("pip")
def test_password_without_tls_is_rejected(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="without TLS") as caught:
        one("pip", machine(PIP_INDEX_URL="http://me:hidden@mirror.example/simple"))
    assert "hidden" not in str(caught.value)


@needs("pip")
def test_unconfigured_pip_uses_its_default_index(machine: Make) -> None:
    preset, _ = one("pip", machine())
    assert len(preset.allow) == 1
    assert preset.allow[0].endswith(":443")
    assert "PIP_INDEX_URL" not in preset.env


@needs("pip")
def test_local_directory_index_is_not_replaced_by_the_default_one(machine: Make) -> None:
    preset, _ = one(
        "pip", machine(PIP_INDEX_URL="file:///srv/simple", PIP_EXTRA_INDEX_URL="https://a.example/ https://b.example/")
    )
    assert preset.allow == ("a.example:443", "b.example:443")
    assert preset.env == {
        "PIP_INDEX_URL": "https://a.example/", "PIP_EXTRA_INDEX_URL": "https://b.example/",
        "UV_DEFAULT_INDEX": "https://a.example/", "UV_INDEX": "https://b.example/",
    }  # fmt: skip
    preset, _ = one("pip", machine(PIP_INDEX_URL="file:///srv/simple", PIP_FIND_LINKS="https://links.example/"))
    assert preset.env == {"PIP_FIND_LINKS": "https://links.example/", "PIP_NO_INDEX": "1", "UV_NO_INDEX": "1"}


@needs("pip")
def test_pip_with_only_local_files_is_an_error(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="only files of this machine"):
        one("pip", machine(PIP_NO_INDEX="1", PIP_FIND_LINKS="/opt/wheels"))


@needs("pip")
@pytest.mark.parametrize(("address", "rule"), [
    ("10.1.2.3", "mirror.internal:443@10.1.2.3"), ("fd00:1::5", "mirror.internal:443@fd00:1::5"),
    ("203.0.113.9", "mirror.internal:443"),
])  # fmt: skip
def test_mirror_at_a_private_address_gets_an_address_rule(address: str, rule: str, machine: Make) -> None:
    here = machine({"mirror.internal": address}, PIP_INDEX_URL="https://mirror.internal/simple")
    assert one("pip", here)[0].allow == (rule,)


@needs("pip")
@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1"])
def test_mirror_at_a_host_local_address_is_an_error(address: str, machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="is a different host inside"):
        one("pip", machine({"localhost": address}, PIP_INDEX_URL="http://localhost:3141/simple"))


@needs("pip")
def test_proxy_is_allowed_with_the_hosts_behind_it(machine: Make) -> None:
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
def test_certificates_trusted_only_by_the_host_are_included(machine: Make, tmp_path: Path) -> None:
    mine, company = certificate(tmp_path / "pip.crt"), certificate(tmp_path / "company.crt")
    here = machine(PIP_INDEX_URL="https://a.example/", PIP_CERT=str(tmp_path / "pip.crt"),
                   SSL_CERT_FILE=str(tmp_path / "company.crt"))  # fmt: skip
    preset, _ = one("pip", here)
    assert mine in preset.certificates
    assert company in preset.certificates
    if Path("/usr/share/ca-certificates").is_dir() and BUNDLE.exists():
        assert preset.certificates.count("BEGIN") < BUNDLE.read_text().count("BEGIN"), "what every image has stays here"


def test_pip_settings_have_the_priority_of_pip() -> None:
    said = "global.index-url='https://g.example/'\ninstall.index-url='https://i.example/'\nglobal.extra-index-url='\\na\\nb'\n"
    assert parse_settings(said) == {"index-url": "https://i.example/", "extra-index-url": "\na\nb"}
    assert parse_settings(":env:.index-url='https://e.example/'\n" + said)["index-url"] == "https://e.example/"
    assert parse_settings("WARNING: x\nglobal.index-url=__import__('os')\n") == {}


@needs("npm")
def test_npm_registries_and_logins_are_read(machine: Make) -> None:
    here = machine({"npm.internal": "10.9.9.9"}, MY_TOKEN="s3cret-token")
    (here.home / ".npmrc").write_text(
        "registry=https://npm.internal/root/\n@ours:registry=https://scoped.example:8443/\n"
        "//npm.internal/root/:_authToken=${MY_TOKEN}\n//elsewhere.example/:_authToken=other\n"
        f"//scoped.example:8443/:username=me\n//scoped.example:8443/:_password={base64.b64encode(b'password').decode()}\n"
    )
    preset, secrets = one("npm", here)
    assert preset.allow == ("npm.internal:443@10.9.9.9", "scoped.example:8443")
    assert preset.env["NPM_CONFIG_REGISTRY"] == preset.env["YARN_REGISTRY"] == "https://npm.internal/root/"
    assert preset.env["YARN_NPM_REGISTRY_SERVER"] == "https://npm.internal/root"
    assert preset.env["COREPACK_NPM_REGISTRY"] == "https://npm.internal/root"
    assert preset.files == {"npmrc": "@ours:registry=https://scoped.example:8443/\n"}
    assert preset.env["NPM_CONFIG_GLOBALCONFIG"] == "/run/skerry/presets/npmrc"
    token, login = secrets
    assert (token.header, token.value, token.hosts) == ("Authorization: Bearer {}", "s3cret-token", ("npm.internal",))
    assert (login.basic, login.value, login.hosts) == ("me", "password", ("scoped.example:8443",))
    assert token.name != login.name
    assert "s3cret" not in repr(preset)


@needs("npm")
def test_attack_npmrc_of_a_project_opens_nothing_and_sends_no_variable(machine: Make) -> None:
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
def test_attack_reading_a_preset_runs_no_program_of_the_project(machine: Make, tmp_path: Path) -> None:
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
def test_unconfigured_npm_uses_its_default_registry(machine: Make) -> None:
    preset, secrets = one("npm", machine())
    assert len(preset.allow) == 1
    assert secrets == ()


@needs("npm")
def test_npm_proxy_and_its_exceptions(machine: Make) -> None:
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
def test_apt_archives_are_read_from_every_kind_of_source(machine: Make, tmp_path: Path) -> None:
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
def test_apt_proxy_and_logins_are_read(machine: Make, tmp_path: Path) -> None:
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
def test_apt_with_only_local_archives_is_an_error(machine: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no archive on the network"):
        one("apt", apt_machine(machine, tmp_path, STANZA.format("file:/srv/debian")))


@needs("git")
def test_git_hosts_come_from_the_configuration_and_the_repository(machine: Make, tmp_path: Path) -> None:
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
def test_attack_repository_adds_its_remotes_but_neither_proxy_nor_headers(machine: Make) -> None:
    here = machine(GIT_CONFIG_NOSYSTEM="1")
    subprocess.run(["git", "init", "-q", str(here.cwd)], check=True, timeout=20)
    with (here.cwd / ".git/config").open("a") as file:
        file.write('[remote "origin"]\n\turl = https://git.example/x\n[http]\n\tproxy = http://127.0.0.1:6379\n'
                   '[url "https://evil.example/"]\n\tinsteadOf = "https://git.example/"\n'
                   '[http "https://evil2.example/"]\n\textraHeader = "X: 12345678"\n')  # fmt: skip
    preset, secrets = one("git", here)
    assert (preset.allow, preset.proxy, preset.env, secrets) == (("git.example:443",), None, {}, ())


@needs("git")
def test_git_without_hosts_is_an_error(machine: Make) -> None:
    with pytest.raises(InvalidRequest, match="name no host"):
        one("git", machine(GIT_CONFIG_NOSYSTEM="1"))


def test_slow_result_is_cached_without_passwords(machine: Make) -> None:
    here, asked = machine(), []

    def look() -> list[str]:
        asked.append(1)
        return ["https://files.example/"]

    for _ in range(2):
        assert cached_answer(here, "pip https://me:pw@mirror.example/", look) == ["https://files.example/"]
    assert len(asked) == 1
    kept = [path for path in here.home.rglob("*") if path.is_file()]
    assert kept
    assert not any("pw@" in path.read_text() or "mirror" in path.name for path in kept)
    assert cached_answer(here, "other", lambda: None) == []


@needs("pip")
def test_every_rule_of_a_preset_is_valid_for_the_server(machine: Make) -> None:
    here = machine({"a.example": "10.0.0.1", "[fd00::7]": "fd00::7"}, PIP_INDEX_URL="https://a.example/",
                   PIP_EXTRA_INDEX_URL="https://[fd00::7]:8443/x", PIP_PROXY="")  # fmt: skip
    preset, _ = one("pip", here)
    check_rules(Network(presets=(preset,)))
    assert preset.allow == ("a.example:443@10.0.0.1", "[fd00::7]:8443")


@needs("go")
def test_go_proxies_and_checksums_are_allowed_and_passwords_become_secrets(machine: Make) -> None:
    here = machine(
        GOPROXY="https://ann:correct-horse@proxy.example/go|http://second.example:8081,direct",
        GOSUMDB="sums.example+033de0ae+Ac4z https://sums.example/db", GOPRIVATE="corp.example", GOFLAGS="",
    )  # fmt: skip
    preset, (secret,) = one("go", here)
    assert preset.allow == ("proxy.example:443", "second.example:8081", "sums.example:443")
    assert preset.env == {
        "GOPROXY": "https://proxy.example/go,http://second.example:8081",
        "GOSUMDB": "sums.example+033de0ae+Ac4z https://sums.example/db",
        "GONOPROXY": "corp.example", "GONOSUMDB": "corp.example",
    }  # fmt: skip
    assert (secret.hosts, secret.basic, secret.value) == (("proxy.example",), "ann", "correct-horse")
    assert one("go", machine(GOSUMDB="off", GOFLAGS=""))[0].env["GOSUMDB"] == "off"
    with pytest.raises(InvalidRequest, match="GOPROXY names no module proxy"):
        one("go", machine(GOPROXY="direct", GOFLAGS=""))


@needs("gem")
def test_gem_sources_are_allowed_and_configured_inside(machine: Make) -> None:
    here = machine()
    (here.home / ".gemrc").write_text(":sources:\n- https://ann:correct-horse@gems.example/\n")
    preset, (secret,) = one("gem", here)
    assert preset.allow == ("gems.example:443", "index.gems.example:443")
    assert preset.files == {"gemrc": ":sources:\n- https://gems.example/\n"}
    assert preset.env["GEMRC"] == "/run/skerry/presets/gemrc"
    assert (secret.hosts, secret.value) == (("gems.example",), "correct-horse")


MAVEN = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">
<mirrors><mirror><id>ours</id><url>https://maven.example/all</url><mirrorOf>*</mirrorOf></mirror></mirrors>
<servers><server><id>ours</id><username>ann</username><password>correct-horse</password></server></servers>
</settings>"""


@needs("mvn")
def test_maven_mirrors_replace_the_built_in_repository(machine: Make) -> None:
    here = machine()
    built_in, _ = one("maven", here)
    assert len(built_in.allow) == 1
    assert built_in.files == {}
    (here.home / ".m2").mkdir()
    (here.home / ".m2/settings.xml").write_text(MAVEN)
    preset, (secret,) = one("maven", here)
    assert preset.allow == ("maven.example:443",)
    assert "<url>https://maven.example/all</url>" in preset.files["settings.xml"]
    assert "correct-horse" not in preset.files["settings.xml"]
    assert preset.env == {"MAVEN_ARGS": "--settings /run/skerry/presets/settings.xml"}
    assert (secret.hosts, secret.basic, secret.value) == (("maven.example",), "ann", "correct-horse")
    (here.home / ".m2/settings.xml").write_text(MAVEN.replace("<mirrorOf>*<", "<mirrorOf>*,!central<"))
    assert one("maven", here)[0].allow == ("maven.example:443", *built_in.allow)
    (here.home / ".m2/settings.xml").write_text(f'<!DOCTYPE s [<!ENTITY a "x">]>{MAVEN}')  # not expanded, not used
    assert one("maven", here)[0].allow == built_in.allow


CARGO = """
[source.crates-io]
replace-with = "ours"
[source.ours]
registry = "sparse+https://crates.example/index/"
[registries.team]
index = "https://git.example/team-index"
"""


@needs("cargo")
def test_cargo_registries_are_allowed_and_a_replaced_source_has_a_file(machine: Make) -> None:
    here = machine(RUSTUP_HOME=os.environ.get("RUSTUP_HOME") or str(Path.home() / ".rustup"))
    with pytest.raises(InvalidRequest, match="cargo did not reach its registry"):
        one("cargo", here)  # the built-in registry is known only to cargo, which has no network here
    (here.home / ".cargo").mkdir()
    (here.home / ".cargo/config.toml").write_text(CARGO)
    preset, secrets = one("cargo", here)
    assert preset.allow == ("git.example:443", "crates.example:443")
    assert preset.env["CARGO_REGISTRIES_TEAM_INDEX"] == "https://git.example/team-index"
    assert 'registry = "sparse+https://crates.example/index/"' in preset.files["cargo.toml"]
    assert secrets == ()
