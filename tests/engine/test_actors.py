"""Whose a change is: those who were at work since the last look, and nobody else."""

from __future__ import annotations

from skerry.engine.actors import COMMAND_MOST, NAMED_MOST, Actor, Actors, shown


def test_a_command_alone_has_its_outcome_and_is_forgotten_after_the_look() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "make"))
    assert (actors.look().kind, actors.look().running, actors.look().alone) == ("command", True, None)
    actors.end("p-1")
    look = actors.look()
    assert look.alone is not None
    assert look.text == "make"
    assert not look.running
    actors.seen(look)
    assert actors.look().kind == "background"


def test_steps_of_one_piece_of_code_are_named_once() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "c: int main() {}"))
    actors.begin(Actor("p-2", "c: int main() {}"))
    assert actors.look().text == "c: int main() {}"


def test_commands_at_once_are_all_named_and_none_has_the_outcome_to_itself() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "serve"))
    actors.begin(Actor("p-2", "make"))
    actors.end("p-2")
    look = actors.look()
    assert ([one.id for one in look.commands], look.text, look.alone) == (["p-1", "p-2"], "serve\nmake", None)
    actors.seen(look)
    assert [one.id for one in actors.look().commands] == ["p-1"]


def test_one_that_ends_while_it_is_looked_at_is_looked_after_again() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "make"))
    look = actors.look()
    actors.end("p-1")
    actors.seen(look)
    assert [one.id for one in actors.look().commands] == ["p-1"]


def test_what_came_by_the_files_api_is_told_as_that_with_what_ran_beside() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "serve"))
    actors.begin(Actor("w-1"))
    assert (actors.look().kind, actors.look().text) == ("api", "serve")


def test_one_that_is_being_started_is_not_asked_for() -> None:
    actors = Actors()
    actors.begin(Actor("p-1", "make", started=False))
    assert actors.running == []
    assert actors.look().running
    actors.started("p-1")
    assert actors.running == ["p-1"]
    actors.never("p-1")
    assert actors.look().actors == ()


def test_commands_are_told_within_bounds() -> None:
    assert len(shown("x" * 1_000_000)) == COMMAND_MOST
    assert shown(["ls", "-l"]) == "ls -l"
    actors = Actors()
    for number in range(NAMED_MOST + 5):
        actors.begin(Actor(f"p-{number}", "y" * 1000))
    assert len(actors.look().text) <= COMMAND_MOST


def test_a_command_is_told_as_one_would_type_it() -> None:
    assert shown(["make", "test"]) == "make test"
    assert shown(["bash", "-lc", "cd src && make"]) == "bash -lc 'cd src && make'"
    assert shown(["sh", "-c", "sed -i 's|a|b|' x"]) == "sh -c \"sed -i 's|a|b|' x\""
    assert shown(["echo", "it's $HOME"]) == "echo 'it'\"'\"'s $HOME'"


def test_what_a_kernel_runs_ends_before_its_kernel_does() -> None:
    actors = Actors()
    actors.begin(Actor("p-1/a", "python: x = 1", kernel="p-1"))
    assert actors.running == [], "its run tells of its end, no keeper does"
    assert actors.look().running
    actors.turned("p-1/a", 1, 0.5)
    actors.begin(Actor("p-1/b", "python: y = 2", kernel="p-1"))
    first, second = actors.look().commands
    assert (first.process, first.ended, first.exit_code, first.duration_s) == ("p-1", True, 1, 0.5)
    assert (second.process, second.ended) == ("p-1", False)
    actors.seen(actors.look())
    assert [one.id for one in actors.look().commands] == ["p-1/b"]
