"""Descriptions, image.toml, plans and their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.client.build.builder import ImageDescription
from skerry.client.build.image_toml import read_recipe_file
from skerry.client.build.plan import BuildPlan, ImageState, RunAction, make_plan
from skerry.client.build.sources import digest
from skerry.client.build.steps import setup_recipe
from skerry.errors import InvalidRequest

BASE = ImageState("sha256:base", env={"PATH": "/bin"}, user="user", cwd="/workspace")


def plan(image: ImageDescription, base: ImageState = BASE) -> BuildPlan:
    bases = dict.fromkeys(image.recipe.bases, base)
    return make_plan(image.recipe, bases, lambda files, parents: digest(files, parents=parents))


def base() -> ImageDescription:
    return ImageDescription.of("base")


def test_steps_use_the_user_and_directory_set_before_them() -> None:
    image = base().run("one").user("root").workdir("app").env(A="1").run(["two"]).pip("numpy>=2")
    one, two, pip = (task.action for task in plan(image).tasks if isinstance(task.action, RunAction))
    assert (one.cmd, one.user, one.cwd, one.env) == ("one", "user", "/workspace", {})
    assert (two.cmd, two.user, two.cwd, two.env) == (["two"], "root", "/workspace/app", {"A": "1"})
    assert (pip.user, pip.preset, pip.cmd[-1]) == ("root", "pip", "numpy>=2")


def test_description_can_be_extended_in_two_ways() -> None:
    start = base().run("a")
    assert plan(start.run("b")).key != plan(start.run("c")).key
    assert len(start.recipe.steps) == 1


def test_snapshots_are_taken_after_steps_that_change_files_and_at_the_end() -> None:
    assert plan(base().env(A="1").run("x").user("root").workdir("/a")).marks == [1, 3]
    assert plan(base().run("x")).marks == [0]
    assert plan(base()).marks == [0]


def test_key_depends_on_all_inputs_of_its_step() -> None:
    same = [
        base().run("x"),
        base().run("x"),
    ]
    others = [
        base().run("y"),
        base().run(["x"]),
        base().env(A="1").run("x"),
        base().user("root").run("x"),
        base().workdir("/b").run("x"),
        base().workdir("/a").workdir("/workspace").run("x"),
        base().entrypoint("a").run("x"),
        base().run("z").run("x"),
        base().apt("x"),
        base().pip("x"),
    ]
    assert len({plan(image).key for image in same}) == 1
    keys = {plan(image).key for image in same + others}
    assert len(keys) == 1 + len(others)
    assert plan(same[0], ImageState("sha256:other", user="user", cwd="/workspace")).key not in keys


def test_change_keeps_the_keys_of_earlier_steps(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    image = base().run("a").copy(tmp_path / "f", "/f").run("b")
    before = [task.key for task in plan(image).tasks]
    (tmp_path / "f").write_text("2")
    after = [task.key for task in plan(image).tasks]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


def test_pip_accepts_a_requirements_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("idna==3\n")
    action = plan(base().pip(requirements=tmp_path / "r.txt")).tasks[0].action
    assert isinstance(action, RunAction)
    assert action.stdin == b"idna==3\n"
    assert action.cmd[-2:] == ["-r", "/dev/stdin"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: base().apt(),
        lambda: base().apt("-o", "x"),
        lambda: base().pip("a\nb"),
        lambda: base().npm(7),  # type: ignore[arg-type]
        lambda: base().run(""),
        lambda: base().run("a\0b"),
        lambda: base().copy("x"),
        lambda: base().copy("a", "b", "/c"),
        lambda: base().copy("a", "/c", mode="9"),
        lambda: base().env(A=1),  # type: ignore[arg-type]
        lambda: base().user(""),
        lambda: base().workdir(""),
        lambda: ImageDescription.of(""),
        lambda: plan(base().copy("there-is-none", "/x")),
        lambda: ImageDescription.dockerfile("/there/is/none"),
    ],
    ids=range(15),
)
def test_invalid_arguments_are_rejected_before_anything_is_created(wrong: object) -> None:
    with pytest.raises(InvalidRequest):
        wrong()  # type: ignore[operator]


FILE = """\
from = "base"

[[steps]]
apt = ["ffmpeg"]

[[steps]]
pip = "numpy"

[[steps]]
copy = ["f", "/app/"]
owner = "user"
mode = "700"

[[steps]]
run = "make"
[[steps]]
run = ["make", "check"]
[[steps]]
env = { A = "1" }
[[steps]]
user = "root"
[[steps]]
workdir = "/app"
[[steps]]
cmd = ["serve"]

[network]
allow = ["example.com"]
"""


def test_image_toml_and_python_descriptions_are_equal(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1")
    image = read_recipe_file(ImageDescription, FILE, "image.toml", str(tmp_path))
    said = base().apt("ffmpeg").pip("numpy").copy(tmp_path / "f", "/app/", owner="user", mode=0o700).run("make")
    said = said.run(["make", "check"]).env(A="1").user("root").workdir("/app").cmd("serve")
    assert plan(image).key == plan(said).key
    assert image.network is not None
    assert image.network.allow == ("example.com",)
    assert str(image.recipe.steps[3].where) == "image.toml:14"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from = 7", "image.toml: from: 7 is not a string"),
        ("form = 'base'", "'form' is not a valid key here"),
        ("steps = 7", "not a list of tables"),
        ("[[steps]]\nrun = 'a'\n[[steps]]\nrum = 'x'", "image.toml:3: rum: not a step"),
        ("[[steps]]\nrun = 'x'\napt = 'y'", "image.toml:1: run and apt in one step"),
        ("[[steps]]\nrun = 'x'\nowner = 'y'", "image.toml:1: 'owner' does not go with run"),
        ("[[steps]]\nrun = 7", "image.toml:1: run: 7 is not a list"),
        ("[[steps]]\nenv = ['a']", "is not a table of strings"),
        ("[[steps]]\ncopy = ['a']", "needs a source and a target"),
        ("[network]\nask = 1", "network: ask"),
        ("[[steps", "image.toml: "),
        ("steps = [{run = 'x'}, {run = 7}]", "image.toml: step 2: run"),
    ],
)
def test_errors_in_a_file_have_their_line(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_recipe_file(ImageDescription, text, "image.toml", "/")
    assert words in caught.value.message


def test_steps_of_a_file_copy_only_files_of_its_directory(tmp_path: Path) -> None:
    image = read_recipe_file(ImageDescription, "[[steps]]\ncopy = ['../x', '/x']", "image.toml", str(tmp_path))
    with pytest.raises(InvalidRequest, match=r"image.toml:1: copy \.\./x /x: \.\./x: outside of"):
        plan(image)


def test_dockerfile_uses_the_context_and_dockerignore_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base\nCOPY . /app\n")
    (tmp_path / "a").write_text("1")
    before = plan(ImageDescription.dockerfile(tmp_path / "Dockerfile")).key
    (tmp_path / "b").write_text("1")
    assert plan(ImageDescription.dockerfile(tmp_path / "Dockerfile")).key != before
    (tmp_path / ".dockerignore").write_text("b\n.dockerignore\n")
    assert plan(ImageDescription.dockerfile(tmp_path / "Dockerfile")).key == before


def test_setup_of_a_project_copies_nothing_from_outside(tmp_path: Path) -> None:
    recipe = setup_recipe("base", ["true"], ["../*"], str(tmp_path), {})
    with pytest.raises(InvalidRequest, match="outside of"):
        plan(ImageDescription(recipe))


def test_variables_and_lines_of_a_project_are_part_of_its_key() -> None:
    keys = {
        plan(ImageDescription(setup_recipe("base", lines, [], "/", env))).key
        for lines in (["a"], ["b"])
        for env in ({}, {"A": "1"}, {"A": None}, {"A": ""})
    }
    assert len(keys) == 8
