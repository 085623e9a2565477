"""Nothing that a workspace holds runs a program on the host, or makes the ledger take without bound."""

from __future__ import annotations

import os
import random
import resource
import subprocess
from pathlib import Path

import pytest
from support.ledgers import begun, contents, put, said

from skerry.config import load
from skerry.engine.doctor import examine
from skerry.errors import HostUnsupported
from skerry.review.ledger import diff
from skerry.review.ledger.git import LedgerGitError, git_version
from skerry.review.ledger.ledger import Drop

PROGRAMS = [
    "canary",
    "sh",
    "bash",
    "less",
    "more",
    "cat",
    "vi",
    "ssh",
    "gpg",
    "sendmail",
    "git-remote-https",
    "git-lfs",
    "env",
]
CONFIG = """[core]
    fsmonitor = canary
    hooksPath = {hooks}
    attributesFile = {home}/attributes
    pager = canary
    editor = canary
    sshCommand = canary
    gitProxy = canary
    alternateRefsCommand = canary
    askPass = canary
[diff]
    external = canary
[diff "evil"]
    textconv = canary
    command = canary
    cachetextconv = true
[filter "evil"]
    clean = canary
    smudge = canary
    process = canary
    required = true
[merge "evil"]
    driver = canary
[pager]
    log = canary
    diff = canary
[gpg]
    program = canary
[log]
    showSignature = true
[credential]
    helper = !canary
[alias]
    log = !canary
    diff-tree = !canary
[include]
    path = {home}/more
[uploadpack]
    packObjectsHook = canary
[init]
    templateDir = {hooks}
"""
ATTRIBUTES = (
    b"* filter=evil diff=evil merge=evil text eol=crlf ident working-tree-encoding=UTF-16 export-subst\n*.bin diff\n"
)
WORKSPACE = [
    put(b".gitattributes", ATTRIBUTES), put(b"sub/.gitattributes", ATTRIBUTES), put(b".gitconfig", CONFIG.encode()),
    put(b".gitmodules", b'[submodule "x"]\n\tpath = x\n\turl = -u./canary\n\tupdate = !canary\n'),
    put(b"config", CONFIG.encode()), put(b"HEAD", b"ref: refs/heads/main\n"), put(b"objects/info/alternates",
    b"/etc\n"),
    put(b"refs/heads/main", b"0" * 40), put(b"hooks/post-update", b"#!/bin/sh\ncanary\n", "100755"),
    put(b"info/grafts", b"x"),
    put(b"hooks/reference-transaction", b"#!/bin/sh\ncanary\n", "100755"), put(b"a.py", b"$Id$\r\nline\n"),
    put(b"x.bin", b"\0\1"),
    put(b"link", b"/etc/passwd", "120000"), put(b".lfsconfig", b"[lfs]\n\turl = http://x\n"),
]  # fmt: skip


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which every setting and many programs would report that they ran."""
    home, programs, hooks, log = (tmp_path / name for name in ("home", "programs", "hooks", "log"))
    for place in (home, programs, hooks):
        place.mkdir()
    (programs / "canary").write_text(f'#!/bin/dash\necho "$0 $*" >> {log}\n')
    (programs / "canary").chmod(0o755)
    for name in PROGRAMS[1:]:
        (programs / name).symlink_to("canary")
    for name in ("post-update", "reference-transaction", "pre-auto-gc", "post-index-change", "proc-receive"):
        (hooks / name).symlink_to(programs / "canary")
    (home / ".gitconfig").write_text(CONFIG.format(home=home, hooks=hooks))
    (home / "attributes").write_bytes(ATTRIBUTES)
    (home / "more").write_text("[core]\n    fsmonitor = canary\n")
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "config").write_text(CONFIG.format(home=home, hooks=hooks))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    for name in (
        "GIT_EXTERNAL_DIFF",
        "GIT_PAGER",
        "PAGER",
        "GIT_EDITOR",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_ASKPASS",
        "GIT_PROXY_COMMAND",
    ):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.external=canary'")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    monkeypatch.setenv("GIT_EXEC_PATH", str(programs))
    return log


def test_no_guest_program_ever_runs(canary: Path, tmp_path: Path) -> None:
    ledger = begun(tmp_path / "l", *WORKSPACE)
    tip = ledger.commit(
        said("canary"),
        [put(one.path, b"x\n" + bytes(one.data), one.mode) for one in WORKSPACE if one.mode != "120000"],  # type: ignore[arg-type]
    )
    assert tip is not None
    deltas = ledger.deltas(ledger.base, tip)
    assert len(deltas) == len(WORKSPACE) - 1
    assert b"+x" in {one.path: text for one, text in ledger.changes_of(deltas)}[b"a.py"]
    assert b"".join(ledger.patch(ledger.base, tip)).count(b"\n+x\n") >= len(WORKSPACE) - 2
    assert len(b"".join(ledger.patch_of(tip))) > 100
    assert ledger.history()[1].files == len(WORKSPACE) - 1
    ledger.move_base({b"a.py": (deltas[0].new_mode or "", ledger.write(b"y"))}, said("", kind="applied"))
    fork = ledger.copy_to(tmp_path / "fork")
    taken = fork.import_agent(ledger.pack([tip]), {"refs/heads/x": tip})
    assert taken.failed is None or "gitmodules" in taken.failed
    for number in range(3):
        fork.commit(said(), [put(b"n", b"%d" % number)])
    fork.git.run("repack", "--geometric=2", "-d", "-q")
    assert contents(fork, fork.tip)[b"a.py"] == ("100644", b"x\n$Id$\r\nline\n")
    assert not canary.exists(), canary.read_text()
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_the_canary_detects_a_run_program(canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same settings, in a git that is called in the usual way."""
    for name in ("GIT_DIR", "GIT_EXEC_PATH", "GIT_CONFIG_PARAMETERS"):
        monkeypatch.delenv(name)
    script = "git init -q w; cd w; echo 1 > a; git add a; git diff --no-index a /dev/null; git status"
    subprocess.run(["/bin/dash", "-c", script], cwd=tmp_path, check=False, capture_output=True)
    assert canary.exists()


def test_workspace_attributes_do_not_affect_patches(tmp_path: Path) -> None:
    """git 2.43 and later would take them from the tree that HEAD names."""
    hidden = put(b".gitattributes", b"* -diff binary -text\n*.py -diff linguist-generated\n")
    ledger = begun(tmp_path, hidden, put(b"a.py", b"1\n"))
    tip = ledger.commit(said(), [put(b"a.py", b"evil\n")])
    assert tip is not None
    (delta,) = ledger.deltas(ledger.base, tip)
    assert (delta.binary, delta.added, delta.removed) == (False, 1, 1)
    assert b"+evil" in b"".join(ledger.patch(ledger.base, tip))
    assert [text for _, text in ledger.changes_of([delta])] == [b"@@ -1 +1 @@\n-1\n+evil\n"]


def test_a_hundred_thousand_files_in_one_directory_are_stored(tmp_path: Path) -> None:
    ledger = begun(tmp_path)
    tip = ledger.commit(said(), (put(b"d/%05d" % number, b"%d" % (number % 10)) for number in range(100_000)))
    assert tip is not None
    again = ledger.commit(said(), [put(b"d/50000", b"other"), Drop(b"d/50001")])
    assert again is not None
    assert [(one.path, one.kind) for one in ledger.deltas(tip, again)] == [
        (b"d/50000", "modified"),
        (b"d/50001", "deleted"),
    ]
    assert sum(1 for _ in ledger.files(again)) == 99_999


def hostile_contents() -> dict[bytes, tuple[bytes, bytes]]:
    chance = random.Random(6)
    lines = diff.MAX_LINES + 10
    few = [b"a\n", b"b\n"]
    return {
        b"empty lines": (b"\n" * (16 << 20), b"\n" * (8 << 20) + b"x" + b"\n" * (8 << 20)),
        b"two kinds of lines": tuple(b"".join(chance.choices(few, k=lines)) for _ in "ab"),  # type: ignore[dict-item]
        b"one line": (b"x" * (4 << 20), b"y" * (4 << 20)),
    }


def test_a_file_too_slow_to_compare_is_reported_as_a_whole(tmp_path: Path) -> None:
    files = hostile_contents()
    ledger = begun(tmp_path, put(b"plain", b"1\n"), *(put(path, old) for path, (old, _) in files.items()))
    tip = ledger.commit(said(), [put(b"plain", b"2\n"), *(put(path, new) for path, (_, new) in files.items())])
    assert tip is not None
    found = {one.path: one for one in ledger.deltas(ledger.base, tip)}
    assert {path for path, one in found.items() if one.binary} == {b"empty lines", b"two kinds of lines"}
    texts = {one.path: text for one, text in ledger.changes_of(list(found.values()))}
    assert texts[b"plain"] == b"@@ -1 +1 @@\n-1\n+2\n"
    assert texts[b"empty lines"] == b""
    patch = b"".join(ledger.patch(ledger.base, tip))
    assert b"Binary files a/empty lines and b/empty lines differ" in patch
    assert b"+2\n" in patch
    assert ledger.history()[1].files == 4
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 1 << 20  # KiB


def test_two_hundred_thousand_changed_lines_are_compared_line_by_line(tmp_path: Path) -> None:
    old = b"".join(b"line %d\n" % number for number in range(200_000))
    new = b"".join(b"line %d!\n" % number for number in range(200_000))
    ledger = begun(tmp_path, put(b"a", old))
    tip = ledger.commit(said(), [put(b"a", new)])
    assert tip is not None
    (delta,) = ledger.deltas(ledger.base, tip)
    assert (delta.added, delta.removed, delta.binary) == (200_000, 200_000, False)
    ((_, text),) = ledger.changes_of([delta])
    assert text.count(b"\n") == 400_001
    assert len(b"".join(ledger.patch(ledger.base, tip, max_bytes=100_000))) == 100_000


def test_git_is_killed_at_its_limits(tmp_path: Path) -> None:
    ledger = begun(tmp_path, put(b"a", b"1"))
    with ledger.git.started("cat-file", "--batch", seconds=0.1) as running:
        assert running.stdout.read() == b""
        with pytest.raises(LedgerGitError, match="timed out") as late:
            running.finish()
    assert late.value.late
    big = ledger.write(bytes(32 << 20))
    with pytest.raises(LedgerGitError, match="more than 10 bytes"):
        ledger.git.run("cat-file", "-p", ledger.tip, max_bytes=10)
    assert len(b"".join(ledger.git.stream("cat-file", "blob", big, max_bytes=1000))) == 1000


def test_a_host_without_git_is_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_version()[0].isdigit()
    ledger = begun(tmp_path, put(b"a", b"1"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (
        git_version,
        lambda: ledger.commit(said(), [put(b"a", b"2")]),
        lambda: ledger.deltas(ledger.tip, ledger.tip),
    ):
        with pytest.raises(HostUnsupported, match="git"):
            call()
    (check,) = [one for one in examine(load()) if one.name == "git"]
    assert check.ok is None
    assert "git" in str(check.fix)
