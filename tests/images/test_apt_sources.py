"""Which archives the base image is made from, read from the host's /etc/apt."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.errors import HostUnsupported, SkerryError
from skerry.images.base.apt import Apt
from skerry.images.base.sources import AptSource, host_release, host_sources, without_passwords

MIRROR = "http://mirror.test/debian"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def one_line(etc: Path, text: str) -> list[AptSource]:
    (etc / "sources.list").write_text(text)
    return host_sources("bookworm", etc)


def stanzas(etc: Path, text: str) -> list[AptSource]:
    (etc / "sources.list.d/debian.sources").write_text(text)
    return host_sources("bookworm", etc)


def test_one_line_entries_are_read(etc: Path) -> None:
    found = one_line(
        etc,
        f"""\
# a comment
deb {MIRROR} bookworm main contrib   # and another
deb-src {MIRROR} bookworm main
  deb\t[arch=amd64 signed-by=/usr/share/keyrings/x.gpg]  {MIRROR}   bookworm-updates main
deb {MIRROR}-security bookworm-security main
""",
    )
    assert found == [
        AptSource((MIRROR,), ("bookworm",), ("main", "contrib")),
        AptSource((MIRROR,), ("bookworm-updates",), ("main",), {"signed-by": "/usr/share/keyrings/x.gpg"}),
        AptSource((f"{MIRROR}-security",), ("bookworm-security",), ("main",)),
    ]


def test_stanzas_are_read_with_comments_and_embedded_keys(etc: Path) -> None:
    found = stanzas(
        etc,
        f"""\
Types: deb deb-src
# in the middle of a stanza
URIs: {MIRROR}
Suites: bookworm bookworm-updates bookworm-backports
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKw
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: {MIRROR}-security
Suites: bookworm-security
Components: main
Enabled: no
""",
    )
    assert [(source.uris, source.suites) for source in found] == [((MIRROR,), ("bookworm", "bookworm-updates"))]
    written = found[0].stanza()
    assert "\n .\n mDMEYCQjIxYJKw\n" in written
    (etc / "sources.list.d/debian.sources").write_text(written)
    assert host_sources("bookworm", etc) == found


def test_third_party_archives_are_left_out(etc: Path) -> None:
    (etc / "sources.list.d/cloud.list").write_text("deb https://packages.test/apt cloud-sdk-bookworm main\n")
    (etc / "sources.list.d/node.sources").write_text(
        "Types: deb\nURIs: https://node.test/node_20.x\nSuites: nodistro\nComponents: main\n"
    )
    (etc / "sources.list.d/old.list.disabled").write_text(f"deb {MIRROR}/disabled bookworm main\n")
    (etc / "sources.list.d/trixie.list").write_text(f"deb {MIRROR} trixie main\n")
    assert one_line(etc, f"deb {MIRROR} bookworm main\n") == [AptSource((MIRROR,), ("bookworm",), ("main",))]


def test_an_archive_that_is_named_twice_is_used_once(etc: Path) -> None:
    (etc / "sources.list.d/again.list").write_text(f"deb {MIRROR}/ bookworm main\n")
    assert len(one_line(etc, f"deb {MIRROR} bookworm main\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "deb",
        "deb http://mirror.test",
        "deb [trusted=yes http://mirror.test bookworm main",
        "deb http://mirror.test trixie main",
        "deb cdrom:[Debian 12]/ bookworm main",
        "deb ftp://mirror.test bookworm main",
        "deb http://mirror.test/ ./",
        "\0\0\0",
        "deb " * 10_000,
        "Types: deb\nURIs: http://mirror.test\nSuites: bookworm\nComponents: main\n",
    ],
)
def test_a_host_without_its_own_archive_is_unsupported(etc: Path, text: str) -> None:
    with pytest.raises(HostUnsupported, match="bookworm"):
        one_line(etc, text)


def test_passwords_are_removed_from_urls() -> None:
    source = AptSource(("https://me:p%40ss@mirror.test:8443/debian",), ("bookworm",), ("main",))
    clean, netrc = without_passwords(source)
    assert clean.uris == ("https://mirror.test:8443/debian",)
    assert netrc == ["machine https://mirror.test:8443/debian login me password p@ss"]
    assert without_passwords(clean) == (clean, [])


def test_a_mirror_list_on_disk_becomes_a_usable_url(etc: Path, tmp_path: Path) -> None:
    mirrors = tmp_path / "mirrors.txt"
    mirrors.write_text(f"# first one wins\n{MIRROR}\tpriority:1\nhttp://other.test/debian\n")
    assert one_line(etc, f"deb mirror+file:{mirrors} bookworm main\n")[0].uris == (MIRROR,)


def test_a_mirror_on_the_hosts_disk_is_copied_from(etc: Path) -> None:
    assert one_line(etc, "deb file:/srv/mirror bookworm main\n")[0].uris == ("copy:/srv/mirror",)


def test_the_release_is_that_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_CODENAME=noble\n')
    assert host_release(tmp_path).codename == "noble"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ID=fedora\nPRETTY_NAME='Fedora 43'\nVERSION_CODENAME=\n", "Fedora 43"),
        ("ID=debian\n", "VERSION_CODENAME"),
        ("ID=debian\nVERSION_CODENAME=../../etc\n", "VERSION_CODENAME"),
        ("ID=debian\nVERSION_CODENAME='un closed\n", "VERSION_CODENAME"),
        ("", "unknown"),
    ],
)
def test_a_host_without_debian_is_unsupported(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "os-release").write_text(text)
    with pytest.raises(HostUnsupported, match=reason):
        host_release(tmp_path)


@pytest.mark.parametrize("text", ["deb [trusted=yes] {} bookworm main\n", "deb [trusted=YES] {} bookworm main\n"])
def test_permission_for_unsigned_archives_is_not_taken_over(etc: Path, text: str) -> None:
    assert one_line(etc, text.format(MIRROR)) == [AptSource((MIRROR,), ("bookworm",), ("main",))]
    stanza = f"Types: deb\nURIs: {MIRROR}\nSuites: bookworm\nComponents: main\nTrusted: yes\n"
    assert "rusted" not in stanzas(etc, stanza)[0].stanza()
    assert one_line(etc, f"deb [trusted=no] {MIRROR} bookworm main\n")[0].options == {"trusted": "no"}


def test_update_fails_if_an_index_is_unreachable(tmp_path: Path) -> None:
    """apt's own default is a warning and exit code 0: the image would be built from the rest, or from old lists."""
    source = AptSource(("http://127.0.0.1:1/debian",), ("bookworm",), ("main",))
    apt = Apt(tmp_path / "apt", [source])
    with (apt.root / "apt.conf").open("a") as settings:
        settings.write('Acquire::Retries "0";\n')
    with pytest.raises(SkerryError, match="fetching the package lists"):
        list(apt.update())
