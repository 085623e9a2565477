"""Attribution of changes: all processes active since the last scan, and no others."""

from __future__ import annotations

from skerry.engine.review.writers import MAX_COMMAND, MAX_NAMED, Writer, Writers, shown


def test_single_command_has_its_outcome_and_is_dropped_after_the_scan() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "make"))
    assert (actors.start_collection().kind, actors.start_collection().running, actors.start_collection().alone) == (
        "command",
        True,
        None,
    )
    actors.end("p-1")
    look = actors.start_collection()
    assert look.alone is not None
    assert look.text == "make"
    assert not look.running
    actors.forget_all(actors.finish_collection(look, committed=True))
    assert actors.start_collection().kind == "background"


def test_steps_of_one_code_run_are_named_once() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "c: int main() {}"))
    actors.begin(Writer("p-2", "c: int main() {}"))
    assert actors.start_collection().text == "c: int main() {}"


def test_concurrent_commands_are_all_named_without_an_outcome() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "serve"))
    actors.begin(Writer("p-2", "make"))
    actors.end("p-2")
    look = actors.start_collection()
    assert ([one.id for one in look.commands], look.text, look.alone) == (["p-1", "p-2"], "serve\nmake", None)
    actors.forget_all(actors.finish_collection(look, committed=True))
    assert [one.id for one in actors.start_collection().commands] == ["p-1"]


def test_command_that_ends_during_a_scan_is_in_the_next_scan_too() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "make"))
    look = actors.start_collection()
    actors.end("p-1")
    actors.forget_all(actors.finish_collection(look, committed=True))
    assert [one.id for one in actors.start_collection().commands] == ["p-1"]


def test_files_api_change_is_named_with_concurrent_commands() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "serve"))
    actors.begin(Writer("w-1"))
    assert (actors.start_collection().kind, actors.start_collection().text) == ("api", "serve")


def test_starting_command_is_not_queried() -> None:
    actors = Writers()
    actors.begin(Writer("p-1", "make", started=False))
    assert actors.running == []
    assert actors.start_collection().running
    actors.started("p-1")
    assert actors.running == ["p-1"]
    actors.forget("p-1")
    assert actors.start_collection().writers == ()


def test_number_of_named_commands_is_bounded() -> None:
    assert len(shown("x" * 1_000_000)) == MAX_COMMAND
    assert shown(["ls", "-l"]) == "ls -l"
    actors = Writers()
    for number in range(MAX_NAMED + 5):
        actors.begin(Writer(f"p-{number}", "y" * 1000))
    assert len(actors.start_collection().text) <= MAX_COMMAND


def test_command_is_shown_as_a_shell_line() -> None:
    assert shown(["make", "test"]) == "make test"
    assert shown(["bash", "-lc", "cd src && make"]) == "bash -lc 'cd src && make'"
    assert shown(["sh", "-c", "sed -i 's|a|b|' x"]) == "sh -c \"sed -i 's|a|b|' x\""
    assert shown(["echo", "it's $HOME"]) == "echo 'it'\"'\"'s $HOME'"


def test_code_run_ends_before_its_kernel() -> None:
    actors = Writers()
    actors.begin(Writer("p-1/a", "python: x = 1", kernel="p-1"))
    assert actors.running == [], "its run tells of its end, no keeper does"
    assert actors.start_collection().running
    actors.end_run("p-1/a", 1, 0.5)
    actors.begin(Writer("p-1/b", "python: y = 2", kernel="p-1"))
    first, second = actors.start_collection().commands
    assert (first.process, first.ended, first.exit_code, first.duration_s) == ("p-1", True, 1, 0.5)
    assert (second.process, second.ended) == ("p-1", False)
    actors.forget_all(actors.finish_collection(actors.start_collection(), committed=True))
    assert [one.id for one in actors.start_collection().commands] == ["p-1/b"]


def test_collected_command_is_known_until_its_record_is_stored() -> None:
    """A reader takes the snapshot first and the records then: without this, a moment of a collection has neither."""
    actors = Writers()
    actors.begin(Writer("p-1/a", "Edit app.py", within="agent"))
    actors.end("p-1/a")
    finished = actors.finish_collection(actors.start_collection(), committed=True)
    assert [one.id for one in finished] == ["p-1/a"]
    assert actors.snapshot()["p-1/a"].within == "agent"
    actors.forget_all(finished)
    assert actors.snapshot() == {}
