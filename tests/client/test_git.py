"""What is asked of git, and how its refusals are told."""

from __future__ import annotations

import pytest

from skerry.client.git import check_clone, clone_argv, cloned
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
def test_a_clone_is_called_after_its_repository(source: str, name: str) -> None:
    assert check_clone(source, None) == name
    assert check_clone(source, "elsewhere/x") == "elsewhere/x"


@pytest.mark.parametrize(
    "source",
    ["", "-u", "--upload-pack=touch /tmp/x", "ext::sh -c touch% /tmp/x", "fd::17", "::x", "hg::https://x/y",
     "a\nb", "a\0", "ftp://example.org/x", "foo+bar://x/y", "\x1b[31m"],
)  # fmt: skip
def test_what_is_no_place_of_a_repository_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="url"):
        check_clone(source, None)


@pytest.mark.parametrize("source", ["/", "..", "https://example.org/-x"])
def test_a_repository_without_a_name_needs_a_path(source: str) -> None:
    with pytest.raises(InvalidRequest, match="path"):
        check_clone(source, None)
    assert check_clone(source, "x") == "x"


def test_options_stand_before_the_dashes_and_nothing_behind_them_is_one() -> None:
    assert clone_argv("-x", "-y", 1, "b") == [
        "git", "clone", "--quiet", "--no-local", "--depth=1", "--branch=b", "--", "-x", "-y",
    ]  # fmt: skip


@pytest.mark.parametrize("depth", [0, -1, True, 1 << 40])
def test_a_depth_is_a_number_of_commits(depth: int) -> None:
    with pytest.raises(InvalidRequest, match="depth"):
        clone_argv("x", "y", depth, None)


@pytest.mark.parametrize("branch", ["", "-b", "a\0b"])
def test_a_branch_is_a_name(branch: str) -> None:
    with pytest.raises(InvalidRequest, match="branch"):
        clone_argv("x", "y", None, branch)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("fatal: unable to access 'https://example.org/x/': Could not resolve host: example.org", "example.org can't"),
        (
            "fatal: unable to access 'https://a/': Failed to connect to 1.2.3.4 port 443 after 0 ms: x",
            "1.2.3.4 can't",
        ),
        ("ssh: Could not resolve hostname example.org: Temporary failure in name resolution", "example.org can't"),
        ("ssh: connect to host example.org port 22: Network is unreachable", "example.org can't"),
        ("fatal: unable to look up example.org (port 9418) (Temporary failure)", "example.org can't"),
        ("fatal: unable to connect to example.org:\nexample.org[0: 1.2.3.4]: errno=x", "example.org can't"),
        (
            "warning: Could not find it\nfatal: Remote branch b not found in upstream origin",
            "branch or tag 'b'",
        ),
        ("fatal: destination path 'there' already exists and is not an empty directory.", "there exists already"),
        ("fatal: could not read Username for 'https://example.org': terminal prompts disabled", "sign in"),
        ("fatal: repository '/x' does not exist", "no git repository at https://example.org/x"),
        ("fatal: write error: No space left on device", "disk is full"),
        ("something new", "something new"),
    ],
)
def test_a_refusal_says_what_it_was_and_what_helps(said: str, told: str) -> None:
    with pytest.raises(CommandFailed, match=told) as caught:
        cloned(failed(said), "https://example.org/x", "there", "b")
    assert caught.value.result is not None
    assert (caught.value.hint is not None) == (said != "something new")


def test_a_refused_host_is_named_in_what_would_allow_it() -> None:
    with pytest.raises(CommandFailed) as caught:
        cloned(failed("Could not resolve host: example.org"), "https://example.org/x", "x", None)
    assert caught.value.hint is not None
    assert 'Network(allow=["example.org"])' in caught.value.hint


def test_a_missing_git_is_told() -> None:
    with pytest.raises(CommandFailed, match="no git in the sandbox"):
        cloned(failed("skerry: git: no such file or directory", 127), "x", "x", None)


def test_a_password_in_the_url_is_not_told_again() -> None:
    url = "https://ann:s3cret@example.org/x"
    with pytest.raises(CommandFailed) as caught:
        cloned(failed(f"fatal: repository '{url}/' not found"), url, "x", None)
    assert "s3cret" not in str(caught.value)
    with pytest.raises(CommandTimeout) as late:
        cloned(Result(id="p-aaaaaaaaaa", exit_code=None, signal="KILL", timed_out=True), url, "x", None)
    assert "s3cret" not in str(late.value)
