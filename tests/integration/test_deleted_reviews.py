"""Accepted changes survive the deletion of their sandbox: it is refused, and the review is kept and restored."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli import SKERRY, environment, skerry
from support.patch_sets import git
from support.server import Server, wait_until

from skerry import Client, Lifecycle, NotFound, Sandbox, UnappliedChanges
from skerry.errors import SkerryError
from skerry.types import Hunk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("a.txt")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-qm", "first")
    return tmp_path


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client
        for sandbox in Sandbox.list(server=client):
            sandbox.delete(force=True, purge=True)


def changed(client: Client, project: Path, name: str | None = None, *, accept: bool = True) -> Sandbox:
    """A sandbox with a change of a.txt, accepted, and a new file, open."""
    sandbox = Sandbox.create(name=name, repo=project, server=client)
    sandbox.run("sed -i s/two/TWO/ a.txt && echo new > new.txt", check=True)
    if accept:
        sandbox.review.accept(hunk(sandbox, "a.txt"))
    return sandbox


def hunk(sandbox: Sandbox, path: str) -> Hunk:
    [found] = sandbox.review.changes(path).hunks
    return found


def names(client: Client) -> list[str | None]:
    return [deleted.sandbox.name for deleted in Sandbox.list_deleted(server=client)]


def test_decisions_and_applies_are_events_and_each_is_recorded_once(client: Client, project: Path) -> None:
    sandbox = changed(client, project)
    sandbox.review.reject(hunk(sandbox, "new.txt"))
    sandbox.review.apply(project)
    sandbox.review.undo(project)

    def told() -> list[tuple[str, str | None]]:
        return [(event.type, event.reason) for event in client.events(sandbox=sandbox.id, type="review")]

    wait_until(lambda: len(told()) == 4, "the events")
    assert told() == [
        ("review.decided", "1 accepted"), ("review.decided", "1 rejected"),
        ("review.applied", "1 hunk"), ("review.undone", "1 hunk"),
    ]  # fmt: skip
    recorded = [record.type for record in client.audit.records(sandbox=sandbox.id, type="review")]
    assert recorded == ["review.undo", "review.apply", "review.decide", "review.decide", "review.begin"]


def test_sandbox_with_accepted_changes_is_deleted_only_by_force(client: Client, project: Path, server: Server) -> None:
    sandbox = changed(client, project, "precious")
    with pytest.raises(UnappliedChanges, match="precious has 1 accepted hunk that was not applied") as caught:
        sandbox.delete()
    assert "`skerry apply precious`" in str(caught.value.hint)
    assert "--force" in str(caught.value.hint)
    with server.http() as http:
        answer = http.delete("/v1/sandboxes/precious")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "unapplied_changes")
    assert answer.json()["error"]["details"] == {"sandbox": sandbox.id, "accepted": 1}
    done = skerry("rm", "precious", server=server.address)
    assert (done.returncode, b"skerry apply precious" in done.stderr) == (2, True)
    assert sandbox.info().state == "running"
    done = skerry("rm", "--force", "precious", server=server.address)
    assert done.returncode == 0
    assert b"dropped 1 accepted and 1 open changes that were not applied" in done.stderr
    assert b"skerry undelete precious" in done.stderr
    with pytest.raises(NotFound):
        sandbox.info()


def test_applied_and_open_changes_do_not_prevent_a_deletion(client: Client, project: Path) -> None:
    sandbox = changed(client, project)
    sandbox.review.apply(project)
    sandbox.delete()
    changed(client, project, accept=False).delete()


def test_rm_asks_at_a_terminal(client: Client, project: Path, server: Server) -> None:
    sandbox = changed(client, project, "asked")
    for answer, code in ((b"n\n", 2), (b"y\n", 0)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*SKERRY, "rm", "asked"], stdin=theirs, stdout=theirs, stderr=theirs,
            env=environment(SKERRY_SERVER=server.address),
        )  # fmt: skip
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal is gone
            while piece := os.read(ours, 4096):
                shown += piece
        os.close(ours)
        assert process.wait(60) == code, shown
        assert b"Delete the sandbox anyway?" in shown
    with pytest.raises(NotFound):
        sandbox.info()


def test_deleted_review_is_listed_and_restored_with_its_decisions(
    client: Client, project: Path, server: Server
) -> None:
    sandbox = changed(client, project, "back")
    sandbox.review.reject(hunk(sandbox, "new.txt"), reason="not needed")
    before = sandbox.review.changes()
    sandbox.delete(force=True)
    server.end()
    server.start()  # a kept review survives the server
    found = next(one for one in Sandbox.list_deleted(server=client) if one.sandbox.id == sandbox.id)
    assert (found.sandbox.name, found.accepted, found.files) == ("back", 1, 2)
    assert found.kept_until - found.deleted_at == 7 * 24 * 3600
    listed = skerry("review", "--deleted", server=server.address)
    assert (listed.returncode, b"back" in listed.stdout) == (0, True)

    done = skerry("undelete", "back", server=server.address)
    assert done.returncode == 0, done.stderr
    assert b"1 accepted" in done.stderr
    again = Sandbox.get("back", server=client)
    assert [(hunk.path, hunk.state, hunk.reason) for hunk in again.review.changes().hunks] == [
        (hunk.path, hunk.state, hunk.reason) for hunk in before.hunks
    ]
    shown = again.run("cat a.txt && readlink link && test -x run.sh && test ! -x a.txt && cat new.txt", check=True)
    assert shown.stdout == "one\nTWO\nthree\na.txt\nnew\n"
    assert "back" not in names(client)
    again.run("sed -i s/three/THREE/ a.txt", check=True)  # changes are recorded as before
    again.review.apply(project)
    assert (project / "a.txt").read_text() == "one\nTWO\nthree\n"
    assert [one.state for one in again.review.changes("a.txt").hunks] == ["open"]


def test_name_that_is_taken_does_not_prevent_an_undelete(client: Client, project: Path, server: Server) -> None:
    changed(client, project, "taken").delete(force=True)
    Sandbox.create(name="taken", server=client)
    with pytest.raises(SkerryError, match="already exists"):
        Sandbox.undelete("taken", server=client)
    assert "taken" in names(client)
    again = Sandbox.undelete("taken", name="other", server=client)
    assert (again.name, hunk(again, "a.txt").state) == ("other", "accepted")
    done = skerry("undelete", "no-such", server=server.address)
    assert (done.returncode, b"skerry review --deleted" in done.stderr) == (2, True)


def test_purged_review_is_not_kept(client: Client, project: Path, server: Server) -> None:
    sandbox = changed(client, project, "purged")
    sandbox.delete(force=True, purge=True)
    assert "purged" not in names(client)
    assert not (server.state_dir / "ledgers" / sandbox.id).exists()


def is_gone(sandbox: Sandbox) -> bool:
    try:
        sandbox.info()
    except NotFound:
        return True
    return False


def test_end_of_lifetime_deletes_a_sandbox_only_after_its_accepted_changes_were_applied(
    client: Client, project: Path
) -> None:
    sandbox = changed(client, project)
    sandbox.update(lifecycle=Lifecycle(max_lifetime="1s"))
    wait_until(lambda: sandbox.info().state == "stopped", "the end of its lifetime")
    why = "its maximum lifetime was over; kept because"
    assert sandbox.info().reason == f"{why} {sandbox.id} has 1 accepted hunk that was not applied"
    sandbox.review.apply(project)
    assert (project / "a.txt").read_text() == "one\nTWO\nthree\n"
    wait_until(lambda: is_gone(sandbox), "the sandbox to be deleted")


@pytest.mark.parametrize("accept", [True, False])
def test_idle_sandbox_with_accepted_changes_is_stopped_instead_of_deleted(
    client: Client, project: Path, accept: bool
) -> None:
    sandbox = changed(client, project, accept=accept)
    sandbox.update(lifecycle=Lifecycle(idle_timeout="1s", on_idle="delete"))
    if not accept:
        wait_until(lambda: is_gone(sandbox), "the sandbox to be deleted")
        return
    wait_until(lambda: sandbox.info().state == "stopped", "the idle timeout")
    assert "kept because" in str(sandbox.info().reason)
    assert hunk(sandbox, "a.txt").state == "accepted"


def test_kept_sandbox_is_deleted_after_the_retention_time_of_reviews(own_server: Server, project: Path) -> None:
    own_server.start(SKERRY_REVIEW_KEEP_DELETED="1s")
    with Client(own_server.address) as client:
        sandbox = changed(client, project)
        sandbox.update(lifecycle=Lifecycle(max_lifetime="1s"))
        wait_until(lambda: is_gone(sandbox), "the sandbox to be deleted")


def test_deletion_by_force_keeps_the_review_and_an_event_reports_it(client: Client, project: Path) -> None:
    sandbox = changed(client, project)
    sandbox.delete(force=True)
    wait_until(lambda: any(one.type == "review.kept" for one in client.events(sandbox=sandbox.id)), "the event")
    [kept] = [one for one in client.events(sandbox=sandbox.id) if one.type == "review.kept"]
    assert f"skerry undelete {sandbox.id}" in str(kept.reason)
    again = Sandbox.undelete(sandbox.id, server=client)
    assert hunk(again, "a.txt").state == "accepted"


def test_end_of_a_with_block_keeps_the_review_and_warns(client: Client, project: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 accepted hunk .*skerry undelete"), changed(client, project) as sandbox:
        pass
    assert sandbox.id in [one.sandbox.id for one in Sandbox.list_deleted(server=client)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with changed(client, project, accept=False):
            pass


def test_prune_leaves_named_sandboxes_and_accepted_changes_alone(client: Client, project: Path, server: Server) -> None:
    named, accepted, plain = (
        Sandbox.create(name="named", server=client), changed(client, project), Sandbox.create(server=client),
    )  # fmt: skip
    for sandbox in (named, accepted, plain):
        sandbox.stop()
    done = skerry("prune", "--yes", server=server.address)
    assert b"1 named sandboxes are kept" in done.stderr
    assert b"skerry apply" in done.stderr
    assert {sandbox.id for sandbox in Sandbox.list(server=client)} == {named.id, accepted.id}
    done = skerry("prune", "--yes", "--named", "--force", server=server.address)
    lost = (
        f"{accepted.id}: dropped 1 accepted and 1 open changes that were not applied; `skerry undelete {accepted.id}`"
    )
    assert (done.returncode, done.stderr.decode().count("dropped")) == (0, 1)
    assert lost in done.stderr.decode()
    assert Sandbox.list(server=client) == []


def test_kept_review_survives_a_killed_server_and_a_lost_database(
    client: Client, project: Path, server: Server
) -> None:
    fault = server.state_dir / "fault"
    server.end()
    server.start(SKERRY_FAULT=str(fault))
    sandbox = changed(client, project, "crash")

    def dies(at: str, *words: str) -> None:
        fault.write_text(at)
        skerry(*words, server=server.address)
        assert server.process is not None
        assert server.process.wait(60) == -9
        fault.unlink()
        server.start(SKERRY_FAULT=str(fault))

    dies("review.deleted", "rm", "-f", "crash")  # before the deletion: nothing happened
    assert hunk(sandbox, "a.txt").state == "accepted"
    assert "crash" not in names(client)
    for at in ("delete.mark", "delete.record"):
        dies(at, "rm", "-f", "crash")
        assert "crash" in names(client)
        if at == "delete.mark":
            sandbox = Sandbox.undelete("crash", server=client)
    dies("review.restored", "undelete", "crash")
    assert "crash" in names(client)
    skerry("rm", "-f", "--purge", "crash", server=server.address)
    server.end()
    for file in server.state_dir.glob("state.db*"):
        file.unlink()
    server.start()
    assert "crash" in names(client)
    again = Sandbox.undelete("crash", server=client)
    assert hunk(again, "a.txt").state == "accepted"


def test_kept_reviews_are_bounded_and_open_ones_go_first(client: Client, project: Path, server: Server) -> None:
    first, second = changed(client, project, "first"), changed(client, project, "second", accept=False)
    first.delete(force=True)
    second.delete()
    assert {"first", "second"} <= set(names(client))
    server.end()
    [(body,)] = server.sql("SELECT body FROM reviews WHERE sandbox = ?", first.id)
    server.start(SKERRY_REVIEW_MAX_DELETED_SIZE=str(json.loads(body)["deleted"]["size"]))
    wait_until(lambda: names(client) == ["first"], "the purge")
    server.end()
    server.start(SKERRY_STORAGE_MIN_FREE_SPACE="900T")
    wait_until(lambda: names(client) == [], "the purge")
    assert not (server.state_dir / "ledgers" / first.id).exists()
