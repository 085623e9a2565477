"""The git command of a clone, and its error messages."""

from __future__ import annotations

import pytest

from skerry.client.host.git_clone import check_clone, check_cloned, clone_argv
from skerry.errors import CommandFailed, CommandTimeout, InvalidRequest
from skerry.types import Result


def failed(stderr: str, code: int = 128) -> Result:
    return Result(id="p-aaaaaaaaaa", exit_code=code, stderr_bytes=stderr.encode())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://example.org/team/repo.git", "repo"),
        ("https://example.org/team/repo/", "repo"),
        ("git@example.org:team/repo.git", "repo"),
        ("example.org:repo", "repo"),
        ("ssh://git@example.org:2222/repo.git", "repo"),
        ("/srv/repo/.git", "repo"),
        ("/srv/repo.git/", "repo"),
        ("repo", "repo"),
        ("file:///srv/a b", "a b"),
    ],
)
def test_clone_directory_is_named_after_its_repository(source: str, name: str) -> None:
    assert check_clone(source, None) == name
    assert check_clone(source, "elsewhere/x") == "elsewhere/x"


@pytest.mark.parametrize(
    "source",
    ["", "-u", "--upload-pack=touch /tmp/x", "ext::sh -c touch% /tmp/x", "fd::17", "::x", "hg::https://x/y",
     "a\nb", "a\0", "ftp://example.org/x", "foo+bar://x/y", "\x1b[31m"],
)  # fmt: skip
def test_invalid_repository_path_is_rejected(source: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        check_clone(source, None)


@pytest.mark.parametrize("source", ["/", "..", "https://example.org/-x"])
def test_repository_without_a_name_needs_a_path(source: str) -> None:
    with pytest.raises(InvalidRequest, match="path"):
        check_clone(source, None)
    assert check_clone(source, "x") == "x"


def test_arguments_after_the_dashes_are_never_options() -> None:
    assert clone_argv("-x", "-y", 1, "b") == [
        "git", "clone", "--quiet", "--no-local", "--depth=1", "--branch=b", "--", "-x", "-y",
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [0, -1, True, 1 << 40])
def test_depth_is_a_number_of_commits(depth: int) -> None:
    with pytest.raises(InvalidRequest, match="depth"):
        clone_argv("x", "y", depth, None)


@pytest.mark.parametrize("branch", ["", "-b", "a\0b"])
def test_invalid_branch_is_rejected(branch: str) -> None:
    with pytest.raises(InvalidRequest, match="branch"):
        clone_argv("x", "y", None, branch)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("fatal: unable to access 'https://example.org/x/': Could not resolve host: example.org", "example.org cannot"),
        (
            "fatal: unable to access 'https://a/': Failed to connect to 1.2.3.4 port 443 after 0 ms: x",
            "1.2.3.4 cannot",
        ),
        ("ssh: Could not resolve hostname example.org: Temporary failure in name resolution", "example.org cannot"),
        ("ssh: connect to host example.org port 22: Network is unreachable", "example.org cannot"),
        ("fatal: unable to look up example.org (port 9418) (Temporary failure)", "example.org cannot"),
        ("fatal: unable to connect to example.org:\nexample.org[0: 1.2.3.4]: errno=x", "example.org cannot"),
        (
            "warning: Could not find it\nfatal: Remote branch b not found in upstream origin",
            "branch or tag 'b'",
        ),
        ("fatal: destination path 'there' already exists and is not an empty directory.", "there already exists"),
        ("fatal: could not read Username for 'https://example.org': terminal prompts disabled", "requires a login"),
        ("fatal: repository '/x' does not exist", "no git repository found at https://example.org/x"),
        ("fatal: write error: No space left on device", "disk is full"),
        ("something new", "something new"),
    ],
)
def test_clone_failure_has_a_message_and_a_hint(said: str, told: str) -> None:
    with pytest.raises(CommandFailed, match=told) as caught:
        check_cloned(failed(said), "https://example.org/x", "there", "b")
    assert caught.value.result is not None
    assert (caught.value.hint is not None) == (said != "something new")


def test_denied_host_is_named_in_the_hint() -> None:
    with pytest.raises(CommandFailed) as caught:
        check_cloned(failed("Could not resolve host: example.org"), "https://example.org/x", "x", None)
    assert caught.value.hint is not None
    assert 'Network(allow=["example.org"])' in caught.value.hint


def test_missing_git_in_the_sandbox_is_reported() -> None:
    with pytest.raises(CommandFailed, match="git is not installed in the sandbox"):
        check_cloned(failed("skerry: git: no such file or directory", 127), "x", "x", None)


def test_password_in_the_url_is_not_printed() -> None:
    url = "https://ann:s3cret@example.org/x"
    with pytest.raises(CommandFailed) as caught:
        check_cloned(failed(f"fatal: repository '{url}/' not found"), url, "x", None)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(CommandTimeout) as late:
        check_cloned(Result(id="p-aaaaaaaaaa", exit_code=None, signal="KILL", timed_out=True), url, "x", None)
    assert "s3cret" not in str(late.value)
