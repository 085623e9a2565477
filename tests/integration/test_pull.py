"""A pull brings the user's later edits into a sandbox, merged with the sandbox's changes."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patch_sets import git, repository, tree_of
from support.server import Server

from skerry import Client, Sandbox
from skerry.errors import Conflict, InvalidRequest

APP = b"".join(b"def f%d():\n    return %d\n\n\n" % (n, n) for n in range(10))
BASE = {"app.py": APP, "docs/old.md": b"one\ntwo\nthree\nfour\n", "run.sh": b"echo 1\n", "logo.bin": b"\0one"}


def edited(number: int, to: bytes, text: bytes = APP) -> bytes:
    return text.replace(b"return %d\n" % number, b"return " + to + b"\n")


class Copy:
    def __init__(self, client: Client, root: Path) -> None:
        self.root = repository(root, BASE)
        self.sandbox = Sandbox.create(repo=str(root), server=client)
        self.repo, self.review = self.sandbox.repo, self.sandbox.review

    def run(self, line: str) -> None:
        self.sandbox.run(line, cwd="/workspace", check=True)

    def inside(self, path: str) -> bytes:
        return self.sandbox.files.read_bytes(f"/workspace/{path}")

    def pull(self, **more: object) -> dict[str, str]:
        return {file.path: file.how for file in self.repo.pull(self.root, **more).files}  # type: ignore[arg-type]

    def write(self, path: str, data: bytes) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)

    def changes(self) -> dict[str, str]:
        return {file.path: file.kind for file in self.review.changes()}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as made:
        yield made


@pytest.fixture
def copy(client: Client, tmp_path: Path) -> Iterator[Copy]:
    made = Copy(client, tmp_path / "project")
    yield made
    made.sandbox.delete()


def test_pull_merges_both_sides_and_apply_gives_the_host_both(copy: Copy) -> None:
    copy.run("sed -i 's/return 3$/return 33/' app.py; echo new > agent.txt")
    copy.write("app.py", edited(7, b"77"))
    copy.write("mine.txt", b"mine\n")
    assert copy.pull() == {"app.py": "merged", "mine.txt": "written"}
    both = edited(3, b"33", edited(7, b"77"))
    assert (copy.inside("app.py"), copy.inside("mine.txt")) == (both, b"mine\n")
    assert copy.changes() == {"agent.txt": "added", "app.py": "modified"}, "my edits are not hunks"
    (hunk,) = [hunk for hunk in copy.review.changes().hunks if hunk.path == "app.py"]
    assert ("+    return 33" in hunk.text, "77" in hunk.text) == (True, False)
    entry = copy.review.history().entries[-1]
    assert (entry.kind, entry.files) == ("pulled", 2)
    assert [entry.kind for entry in copy.review.history()] == ["base", "command", "pulled"]
    assert [entry.kind for entry in copy.review.origin(hunk).entries] == ["command"]
    copy.review.apply(copy.root, all=True)
    assert tree_of(copy.root) == {**BASE, "app.py": both, "mine.txt": b"mine\n", "agent.txt": b"new\n"}
    assert copy.changes() == {}
    assert (copy.pull(), copy.changes()) == ({}, {})
    (copy.root / "agent.txt").unlink()
    copy.write("app.py", edited(7, b"77"))
    assert copy.pull() == {"agent.txt": "removed", "app.py": "written"}, "I reverted applied changes"
    assert (copy.inside("app.py"), copy.changes()) == (edited(7, b"77"), {})


def test_pull_carries_removals_renames_modes_links_and_untracked_files(copy: Copy) -> None:
    copy.write("notes/untracked.txt", b"untracked\n")
    copy.write(os.fsdecode(b"caf\xe9"), b"1")
    (copy.root / "docs/old.md").rename(copy.root / "new.md")
    (copy.root / "docs").rmdir()
    (copy.root / "logo.bin").unlink()
    (copy.root / "run.sh").chmod(0o755)
    (copy.root / "link").symlink_to("app.py")
    copy.write("docs", b"a file now\n")
    how = copy.pull()
    assert how == {
        "notes/untracked.txt": "written", "caf\ufffd": "written", "docs/old.md": "removed", "new.md": "written",
        "logo.bin": "removed", "run.sh": "written", "link": "written", "docs": "written",
    }  # fmt: skip
    listed = copy.sandbox.run("find . -path ./.git -prune -o -printf '%y%m %p %l\\n'", cwd="/workspace").stdout
    found = {line for line in listed.splitlines() if line[0] != "d"}
    assert {"f755 ./run.sh ", "l777 ./link app.py", "f644 ./docs ", "f644 ./notes/untracked.txt "} <= found
    assert (len(found), copy.changes()) == (7, {}), found
    owners = copy.sandbox.run("stat -c %U app.py run.sh docs notes notes/untracked.txt", cwd="/workspace").stdout
    assert set(owners.split()) == {"user"}
    (copy.root / "link").unlink()
    (copy.root / "link").symlink_to("run.sh")
    assert copy.pull() == {"link": "written"}
    (copy.root / "link").unlink()
    copy.write("link", b"a file\n")
    assert (copy.pull(), copy.inside("link"), copy.changes()) == ({"link": "written"}, b"a file\n", {})


def test_edits_follow_a_file_that_the_other_side_renamed(copy: Copy) -> None:
    copy.run("mv docs/old.md docs/theirs.md; sed -i 's/return 3$/return 33/' app.py")
    copy.write("docs/old.md", b"one\ntwo\nthree\nFOUR\n")
    (copy.root / "app.py").rename(copy.root / "main.py")
    copy.write("main.py", edited(7, b"77"))
    assert copy.pull() == {"app.py": "removed", "main.py": "merged", "docs/old.md": "same", "docs/theirs.md": "merged"}
    assert copy.inside("main.py") == edited(3, b"33", edited(7, b"77"))
    assert copy.inside("docs/theirs.md") == b"one\ntwo\nthree\nFOUR\n"
    assert copy.changes() == {"docs/theirs.md": "renamed", "main.py": "modified"}
    copy.review.apply(copy.root, all=True)
    assert (copy.root / "docs/theirs.md").read_bytes() == b"one\ntwo\nthree\nFOUR\n"
    assert sorted(os.listdir(copy.root / "docs")) == ["theirs.md"]


def test_conflicts_are_reported_before_anything_changes(copy: Copy) -> None:
    copy.run(
        "sed -i 's/return 3$/return 33/' app.py; printf '\\0two' > logo.bin; rm run.sh; echo theirs > new.txt;"
        " echo more >> docs/old.md; mkdir dir; echo x > dir/x"
    )
    copy.write("app.py", edited(3, b"333"))
    copy.write("logo.bin", b"\0three")
    copy.write("run.sh", b"echo 2\n")
    copy.write("new.txt", b"mine\n")
    copy.write("dir", b"a file\n")
    copy.write("fine.txt", b"fine\n")
    (copy.root / "docs/old.md").unlink()
    with pytest.raises(Conflict, match="6 paths are in the way of this pull; nothing was changed") as caught:
        copy.pull()
    assert {one["path"]: one["reason"] for one in caught.value.details["conflicts"]} == {
        "app.py": "changed here and in the sandbox", "logo.bin": "changed here and in the sandbox, and it is binary",
        "run.sh": "changed here, removed in the sandbox", "docs/old.md": "removed here, changed in the sandbox",
        "new.txt": "added here and in the sandbox, with different contents",
        "dir": "a file on one side, a directory on the other",
    }  # fmt: skip
    assert [one["lines"] for one in caught.value.details["conflicts"] if one["path"] == "app.py"] == [[[14, 14]]]
    assert [entry.kind for entry in copy.review.history()] == ["base", "command"]
    assert not copy.sandbox.files.exists("/workspace/fine.txt")
    (copy.root / "dir").unlink()
    assert copy.pull(dry_run=True, prefer="sandbox")["fine.txt"] == "written"
    copy.pull(prefer="sandbox")
    assert (copy.inside("app.py"), copy.inside("fine.txt")) == (edited(3, b"33"), b"fine\n")
    (hunk,) = copy.review.changes("app.py").hunks
    assert "-    return 333\n+    return 33\n" in hunk.text, "against my version"
    copy.write("app.py", edited(3, b"3333"))
    copy.pull(prefer="host")
    assert copy.inside("app.py") == edited(3, b"3333")
    assert copy.review.changes("app.py").hunks == ()
    with pytest.raises(InvalidRequest):
        copy.pull(prefer="nobody")


def test_decisions_stay_with_their_lines_when_the_base_moves(copy: Copy) -> None:
    copy.run("sed -i 's/return 3$/return 33/; s/return 7$/return 77/' app.py")
    three, seven = copy.review.changes().hunks
    copy.review.accept(three)
    copy.review.reject(seven, reason="no")
    copy.write("app.py", b"# a\n# b\n" + APP)
    copy.pull()
    states = [(hunk.state, hunk.old_start) for hunk in copy.review.changes().hunks]
    assert states == [("accepted", three.old_start + 2), ("rejected", seven.old_start + 2)]
    copy.review.apply(copy.root)
    assert (copy.root / "app.py").read_bytes() == b"# a\n# b\n" + edited(3, b"33")


def test_changes_applied_to_a_branch_are_not_reverted(copy: Copy) -> None:
    copy.run("sed -i 's/return 3$/return 33/' app.py")
    copy.review.accept(*copy.review.changes().hunks)
    copy.review.apply(copy.root, branch="later")
    copy.write("app.py", edited(7, b"77"))
    assert copy.pull() == {"app.py": "merged"}
    assert copy.inside("app.py") == edited(3, b"33", edited(7, b"77"))
    assert copy.changes() == {}, "applied changes are not hunks again"


def test_files_that_are_ignored_on_the_host_since_stay_and_unignored_ones_come(copy: Copy) -> None:
    copy.write(".gitignore", b"*.log\n")
    copy.write("a.log", b"ignored\n")
    assert copy.pull() == {".gitignore": "written"}
    copy.write(".gitignore", b"run.sh\n")
    git(copy.root, "rm", "-q", "--cached", "run.sh")
    assert copy.pull() == {".gitignore": "written", "a.log": "written"}
    copy.run("echo more >> a.log")
    assert copy.inside("run.sh") == BASE["run.sh"]
    assert copy.changes() == {"a.log": "modified"}, "it counts in spite of the rules of the copy"


def test_status_counts_commits_and_edited_files(copy: Copy, tmp_path: Path) -> None:
    status = copy.repo.status(copy.root)
    assert (status.commits, status.files, status.behind, str(status)) == (0, 0, False, "up to date")
    os.utime(copy.root / "app.py")
    copy.write("app.py", edited(3, b"33"))
    copy.write("new.txt", b"new\n")
    (copy.root / "run.sh").unlink()
    assert str(copy.repo.status(copy.root)) == "3 edited files behind"
    git(copy.root, "add", "-A")
    git(copy.root, "commit", "-q", "-m", "more")
    assert str(copy.repo.status(copy.root)) == "1 commit and 3 edited files behind"
    assert copy.repo.pull(copy.root).head == git(copy.root, "rev-parse", "HEAD").strip()
    assert str(copy.repo.status(copy.root)) == "up to date"
    for number in range(400):
        copy.write(f"many/{'long name ' * 20}{number}", b"new\n")
    assert str(copy.repo.status(copy.root)) == "400 edited files behind"
    git(copy.root, "checkout", "-q", "--detach", "HEAD~")
    assert copy.repo.status(copy.root).commits is None
    with pytest.raises(Conflict, match="was not created from"):
        copy.repo.status(repository(tmp_path / "other", BASE))


@pytest.mark.parametrize("how", ["rm", "rm --cached", "delete untracked", "delete beside ignored", "new rule"])
def test_status_counts_each_path_that_a_pull_would_remove_or_add(client: Client, tmp_path: Path, how: str) -> None:
    root = repository(tmp_path / "project", {**BASE, ".gitignore": b"*.log\n"})
    (root / "new").mkdir()
    for path in ("draft.txt", "new/draft.txt", "new/x.log", "y.log"):
        (root / path).write_bytes(b"draft\n")
    with Sandbox.create(repo=str(root), server=client) as sandbox:
        for _ in range(2):
            assert str(sandbox.repo.status(root)) == "up to date"
        match how:
            case "rm":
                git(root, "rm", "-q", "docs/old.md")
            case "rm --cached":
                git(root, "rm", "-q", "--cached", "docs/old.md")
                (root / "docs/old.md").unlink()
            case "delete untracked":
                (root / "draft.txt").unlink()
            case "delete beside ignored":
                (root / "new/draft.txt").unlink()
            case _:
                (root / ".gitignore").write_bytes(b"*.log\n!y.log\n")
        done = sandbox.repo.pull(root, dry_run=True)
        assert sandbox.repo.status(root).files == len(done.files) == (2 if how == "new rule" else 1)
        sandbox.repo.pull(root)
        assert str(sandbox.repo.status(root)) == "up to date"


class History:
    """Random edits on both sides that never meet: you own the first ten lines of each file and the files in `mine/`,
    the sandbox the last ten and those in `box/`."""

    LINES = 30

    def __init__(self, copy: Copy, seed: int) -> None:
        self.copy, self.random, self.count = copy, random.Random(seed), 0
        self.files = {f"f{number}.txt": [f"line {line}" for line in range(self.LINES)] for number in range(4)}
        self.mine: dict[str, str] = {}
        self.box: dict[str, str] = {}
        self.by_box: set[str] = set()
        for path in self.files:
            self.write(path)
        copy.repo.pull(copy.root)

    def write(self, path: str) -> None:
        """Write the file as you have it: with your lines only."""
        lines = self.files[path]
        last = [f"line {line}" for line in range(self.LINES - 10, self.LINES)]
        self.copy.write(path, "".join(f"{line}\n" for line in (*lines[:-10], *last)).encode())

    def edit(self) -> None:
        """Edit your side."""
        self.count += 1
        action = self.random.choice(["line", "line", "add", "remove", "delete", "commit"])
        path = self.random.choice(sorted(self.files))
        if action == "line":
            self.files[path][self.random.randrange(10)] = f"mine {self.count}"
            self.write(path)
        elif action == "add":
            self.mine[name := f"mine/{self.random.randrange(5)}"] = text = f"{self.count}\n"
            self.copy.write(name, text.encode())
        elif action == "remove" and self.mine:
            name = self.random.choice(sorted(self.mine))
            (self.copy.root / name).unlink()
            del self.mine[name]
        elif action == "delete" and len(self.files) > 1 and path not in self.by_box:
            git(self.copy.root, "rm", "-qf", "--ignore-unmatch", path)
            (self.copy.root / path).unlink(missing_ok=True)
            del self.files[path]
        else:
            git(self.copy.root, "add", "-A")
            git(self.copy.root, "commit", "-q", "--allow-empty", "-m", f"{self.count}")

    def edit_inside(self) -> None:
        self.count += 1
        path = self.random.choice(sorted(self.files))
        if self.random.random() < 0.6:
            line = self.random.randrange(self.LINES - 10, self.LINES)
            self.files[path][line] = f"box {self.count}"
            self.by_box.add(path)
            self.copy.run(f"sed -i '{line + 1}s/.*/box {self.count}/' {path}")
        else:
            self.box[name := f"box/{self.random.randrange(5)}"] = text = f"{self.count}\n"
            self.copy.run(f"mkdir -p box && echo {text.strip()} > {name}")

    def expected(self) -> dict[str, str]:
        merged = {path: "".join(f"{line}\n" for line in lines) for path, lines in self.files.items()}
        return {**{path: data.decode("latin-1") for path, data in BASE.items()}, **merged, **self.mine, **self.box}

    def inside(self) -> dict[str, str]:
        listed = self.copy.sandbox.run(["git", "ls-files", "-z", "-co"], cwd="/workspace", check=True).stdout
        names = sorted({name for name in listed.split("\0") if name})
        present = [name for name in names if self.copy.sandbox.run(["test", "-e", name], cwd="/workspace").ok]
        return {name: self.copy.inside(name).decode("latin-1") for name in present}


@pytest.mark.parametrize("seed", range(3))
def test_random_history_of_pulls_keeps_the_edits_of_both_sides(copy: Copy, seed: int) -> None:
    history = History(copy, seed)
    for _ in range(4):
        for _ in range(history.random.randrange(1, 6)):
            history.random.choice([history.edit, history.edit_inside])()
        copy.pull()
        assert history.inside() == history.expected(), seed
        assert (copy.pull(), str(copy.repo.status(copy.root))) == ({}, "up to date"), seed
        assert set(copy.changes()) == history.by_box | set(history.box), seed


def test_pull_from_another_directory_needs_its_path(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = repository(tmp_path / "other", {**BASE, "app.py": edited(1, b"11")})
    monkeypatch.chdir(other)
    with pytest.raises(Conflict, match="was not created from"):
        copy.repo.pull()
    assert {file.path: file.how for file in copy.repo.pull(other).files} == {"app.py": "written"}


def test_pull_after_a_rollback_brings_the_lost_edits_again(copy: Copy) -> None:
    snapshot = copy.sandbox.snapshot()
    copy.write("app.py", edited(7, b"77"))
    copy.pull()
    copy.sandbox.rollback(snapshot)
    snapshot.delete()
    assert copy.inside("app.py") == APP
    assert copy.changes() == {"app.py": "modified"}, "the rollback is a change"
    assert copy.repo.status(copy.root).files == 1
    assert copy.pull() == {"app.py": "written"}
    assert (copy.inside("app.py"), copy.changes()) == (edited(7, b"77"), {})


def test_invalid_pulls_change_nothing(copy: Copy, server: Server) -> None:
    with server.http() as http:
        path = f"/v1/sandboxes/{copy.sandbox.id}/review"
        head = json.loads(http.get(f"{path}/tree").text.splitlines()[0])
        version = ["100644", hashlib.sha1(b"blob 1\0x").hexdigest()]

        def post(*files: dict[str, object], sent: bytes = b"", **more: object) -> tuple[int, str]:
            told = {"synced": head["synced"], "base": head["base"], "files": len(files), "contents": 0, "copied_at": 1}
            lines = [{**told, **more}, list(files)] if files else [{**told, **more}]
            body = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + sent
            done = http.post(f"{path}/pulls", content=body, headers={"Content-Type": "application/octet-stream"})
            return done.status_code, done.json().get("error", {}).get("message", "")

        new = {"merged": version, "new": version, "base": version}
        one = b'{"oid":"%s","size":1}\n' % str(version[1]).encode()
        for name in ("../x", ".git/config", "a/.GIT/x", "/etc/x", ""):
            assert post({"path": name, **new}, sent=one + b"x", contents=1)[0] == 400
        wrong = [
            ({"path": "x", **new}, {"contents": 1}, one + b"y", "is not"),
            ({"path": "x", **new}, {"contents": 1}, one, "ended early"),
            ({"path": "x", **new}, {"contents": 1}, one + b"xx", "more bytes"),
            ({"path": "x", **new}, {"files": 2}, b"", "ended early"),
            ({"path": "x", "merged": ["100600", version[1]]}, {}, b"", "pull:"),
            ({"path": "app.py/x", **new}, {"contents": 1}, one + b"x", "a file and a directory"),
        ]
        for file, more, contents, reason in wrong:
            status, said = post(file, sent=contents, **more)
            assert (status, reason in said) == (400, True), (file, said)
        assert post({"path": "x", **new})[0] == 404
        assert post({"path": "app.py", **new}, sent=one + b"x", contents=1)[0] == 409
        assert post(synced="0" * 40) == (409, "the review changed during the pull")
    assert [entry.kind for entry in copy.review.history()] == ["base"]
    assert copy.inside("app.py") == APP
