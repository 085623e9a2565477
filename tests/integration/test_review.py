"""What changed in a workspace, command by command: one sandbox that all tests here share, and what they add to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Server

from skerry import Client, Sandbox
from skerry.errors import Conflict, NotFound

START = """
cd /workspace && git init -q . && mkdir -p src deep/er nested && git init -q nested/own
printf 'one\\ntwo\\nthree\\n' > a.txt; echo 'print(1)' > src/b.py; ln -s a.txt link; mkfifo pipe; echo x > deep/er/x
head -c 3000 /dev/urandom > binary; echo '*.log' > .gitignore; echo old > old.log
"""


@pytest.fixture(scope="module")
def sandbox(server: Server) -> Iterator[Sandbox]:
    with Client(server.address) as client, Sandbox(server=client) as made:
        made.run(START, check=True)
        made.review.begin(ignore={"": ["*.log"]})
        yield made


def test_a_review_begins_with_nothing_changed_and_says_what_it_leaves_out(sandbox: Sandbox) -> None:
    assert sandbox.review.diff() == ""
    (base,) = sandbox.review.history()
    assert (base.kind, base.command) == ("base", "")
    left_out = {one.path: one.new for one in sandbox.review.diff(stat=True).left_out}
    assert left_out == {"pipe": False, "nested/own/.git": False}


def test_a_second_review_is_refused_and_a_sandbox_without_one_says_so(sandbox: Sandbox) -> None:
    with pytest.raises(Conflict, match="review already"):
        sandbox.review.begin()
    with Sandbox(server=sandbox.client) as other, pytest.raises(NotFound, match="has no review") as caught:
        other.review.diff()
    assert "--repo" in str(caught.value.hint)


def test_what_a_command_changed_is_its_entry_with_how_it_ended(sandbox: Sandbox) -> None:
    line = "sed -i s/two/TWO/ a.txt; rm src/b.py; chmod +x deep/er/x; ln -sfn src link; mv binary moved; exit 3"
    result = sandbox.run(f"cd /workspace; {line}")
    (entry,) = sandbox.review.history(patch=True, limit=1)
    assert (entry.kind, entry.command, entry.exit_code) == ("command", f"cd /workspace; {line}", 3)
    assert (entry.processes, entry.running, entry.files) == ((result.id,), False, 5)
    changed = {file.path: (file.kind, file.new_mode) for file in sandbox.review.diff(stat=True)}
    assert changed == {
        "a.txt": ("modified", "100644"), "src/b.py": ("deleted", None), "deep/er/x": ("modified", "100755"),
        "link": ("modified", "120000"), "moved": ("renamed", "100644"),
    }  # fmt: skip
    assert entry.patch is not None
    assert "\n-two\n+TWO\n" in entry.patch
    assert sandbox.review.diff("a.txt") in sandbox.review.diff()
    assert "b.py" not in sandbox.review.diff(["a.txt", "deep"])


def test_commands_one_after_another_have_each_their_own(sandbox: Sandbox) -> None:
    before = sandbox.review.history().entries[-1].commit
    for number in range(5):
        sandbox.run(["touch", f"/workspace/n{number}"])
        sandbox.run("true")
    told = sandbox.review.history(since=before)
    assert [entry.command for entry in told] == [f"touch /workspace/n{number}" for number in range(5)]
    assert all((entry.files, entry.exit_code) == (1, 0) for entry in told)


def test_what_came_by_the_files_api_is_told_as_that(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/api.txt", "from outside\n")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command, entry.files) == ("api", "", 1)


def test_a_session_s_command_is_told_as_it_was_typed(sandbox: Sandbox) -> None:
    session = sandbox.session("work")
    session.run("cd /workspace")
    session.run("echo s > s.txt")
    (entry,) = sandbox.review.history(limit=1)
    assert (entry.kind, entry.command) == ("command", "echo s > s.txt")
