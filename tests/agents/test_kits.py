"""The reader of kits is strict, and the built-in kits pass it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from skerry import Client, Sandbox
from skerry.cli.commands.agent_image import digest_of
from skerry.client.agents.credentials import find_secrets
from skerry.client.agents.descriptor import PROMPT
from skerry.client.agents.kits import BUILT_IN, load_directory, load_kit
from skerry.errors import InvalidRequest

KIT = """\
schemaVersion: "3"
kind: workload
args:
  version: {default: "1.0", buildArg: VERSION}
  mood: {default: calm, enum: [calm, wild], env: MOOD}
build: |
  FROM base
  ENTRYPOINT ["echo"]
capabilities:
  - type: com.docker.sandbox/network-policy@1
    config: {runtime: {allow: ["api.example.com:443"], deny: [telemetry.example.com]}}
  - type: com.docker.sandbox/credential@1
    config:
      service: example
      phase: runtime
      apiKey: {name: EXAMPLE_KEY, inject: [{domain: api.example.com, header: x-key, format: "%s"}]}
  - type: com.docker.sandbox/agent-sessions@1
    config: {prompt: ["--say", "{{.Prompt}}", "${{ kit.args.mood }}"]}
  - type: example.com/music@1
    optional: true
"""


def write(directory: Path, text: str) -> str:
    (directory / "talker.yaml").write_text(text)
    return str(directory)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_kit_is_complete(name: str) -> None:
    kit = load_kit(name)
    assert kit.descriptor.display_name
    assert kit.extension.package
    assert kit.extension.sign_in
    assert kit.skipped == ()
    assert kit.resources.memory == "4g"
    assert kit.credentials
    assert (kit.editor is not None) == bool(kit.acp)
    assert "fix it" in " ".join(kit.headless("fix it", again=False))
    assert PROMPT not in " ".join(kit.headless("fix it", again=True))
    hosts = {rule.partition(":")[0] for rule in kit.network.runtime.allow}
    assert not hosts & {rule.partition(":")[0] for rule in kit.network.runtime.deny}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("again", [False, True])
def test_arguments_of_the_user_come_before_a_prompt_that_follows_two_dashes(name: str, again: bool) -> None:
    """After `--`, every word is text: `--model` would be a part of the prompt."""
    words = load_kit(name).headless("--", again=again, events=True, arguments=("--model", "{{.Prompt}}"))
    at = words.index("--model")
    assert words[at + 1] == "{{.Prompt}}"
    assert "--" not in words[:at] or "--" not in words[at:]
    assert words.count("--") == load_kit(name).headless("x", again=again).count("--") + 1


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "mini-swe-agent"])
def test_model_is_an_argument_of_the_kit(name: str) -> None:
    kit = load_kit(name, {"model": "provider/model-1.0"})
    assert (
        "provider/model-1.0"
        in [*kit.environment.values(), *(hook.command for hook in kit.lifecycle.install)].__repr__()
    )
    with pytest.raises(InvalidRequest, match="does not match"):
        load_kit(name, {"model": "'$(id)"})


@pytest.mark.parametrize("model", ["", "gpt-5.1"])
def test_settings_of_codex_name_the_chosen_model(client: Client, model: str) -> None:
    (hook,) = load_kit("codex", {"model": model}).lifecycle.install
    with Sandbox(server=client) as sandbox:
        sandbox.run(hook.argv, env={"OPENAI_API_KEY": "placeholder", "WORKSPACE_DIR": "/workspace"}, check=True)
        settings = tomllib.loads(sandbox.files.read_text("/home/user/.codex/config.toml"))
    assert settings.get("model", "") == model
    assert settings["projects"]["/workspace"] == {"trust_level": "trusted"}


def test_kit_of_a_directory_has_its_own_images(tmp_path: Path) -> None:
    """With the name of a built-in agent, it would determine that agent's installed version."""
    (tmp_path / "codex.yaml").write_text(KIT)
    assert load_directory(str(tmp_path)).image == "kit/codex@1.0"
    assert load_kit("codex", {"version": "1.0.0"}).image == "agent/codex@1.0.0"


@pytest.mark.parametrize("source", ["file", "dir", "$VERSION"])
def test_digest_of_a_kit_covers_the_files_that_it_copies(tmp_path: Path, source: str) -> None:
    recipe = f"  FROM base\n  ARG VERSION\n  COPY {source} /opt/x"
    write(tmp_path, KIT.replace("  FROM base", recipe))
    (tmp_path / "dir").mkdir()
    for place in ("file", "dir/inner", "1.0", "other"):
        (tmp_path / place).write_text("one")
    before = digest_of(load_directory(str(tmp_path)))
    assert digest_of(load_directory(str(tmp_path))) == before
    changed = {"file": "file", "dir": "dir/inner", "$VERSION": "1.0"}[source]
    (tmp_path / changed).write_text("two")
    assert digest_of(load_directory(str(tmp_path))) != before


# Files of agents that may contain keys, tokens or commands with them.
PRIVATE = (
    ".aider.conf.yml",
    ".env",
    "auth.json",
    "settings.json",
    "config.toml",
    "config.json",
    ".claude.json",
    "opencode.json",
)


@pytest.mark.parametrize("name", BUILT_IN)
def test_copied_settings_contain_no_file_with_keys(name: str) -> None:
    """`.aider.conf.yml` may have `openai-api-key:` and `set-env:`: the sandbox would contain the user's key."""
    for path in load_kit(name).extension.user_config:
        assert path.rpartition("/")[2] not in PRIVATE
        assert "/" in path  # no whole directory of settings, such as `.claude`


def test_kit_of_a_directory_is_read(tmp_path: Path) -> None:
    kit = load_directory(write(tmp_path, KIT), {"mood": "wild"})
    assert (kit.name, kit.image, kit.environment) == ("talker", "kit/talker@1.0", {"MOOD": "wild"})
    assert kit.headless("-rf $(id) {{.SessionID}}", again=False) == ["--say", "-rf $(id) {{.SessionID}}", "wild"]
    assert kit.skipped == ("example.com/music@1",)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("kind: workload", "kind: mixin", "mixin"),
        ('schemaVersion: "3"', 'schemaVersion: "2"', "schemaVersion"),
        ("kind: workload", "kind: workload\nkind: workload", "twice"),
        ("kind: workload", "kind: workload\nmystery: 1", "mystery"),
        ("deny: [", "denied: [", "denied"),
        ("kind: workload", "displayName: &a x\nauthor: *a\nkind: workload", "alias"),
        ("    optional: true\n", "", "required, and not supported"),
        ("domain: api.example.com", "domain: evil.example.com", "not allowed"),
        ("domain: api.example.com", "domain: 'http://x/'", "http://x/"),
        ("{{.Prompt}}", "prompt", "Prompt"),
        ("kit.args.mood", "kit.args.rage", "rage"),
        ("kit.args.mood", "kit.secrets.key", "reference"),
        ("build: |\n  FROM base\n  ENTRYPOINT [\"echo\"]", "dockerfile: ../../etc/passwd", "outside"),
        ("enum: [calm, wild]", 'enum: ["[", "]"]', "not one of"),
    ],
)  # fmt: skip
def test_wrong_kit_is_rejected(before: str, after: str, why: str, tmp_path: Path) -> None:
    changed = KIT.replace(before, after, 1)
    assert changed != KIT
    with pytest.raises(InvalidRequest) as error:
        load_directory(write(tmp_path, changed))
    assert why in str(error.value)


ACP = """\
provides: ["talker@1.0"]
capabilities:
  - type: com.docker.sandbox/acp@1
    config: {agent: talker, command: [talker, --acp]}
"""


@pytest.mark.parametrize(
    ("before", "after", "spoken"),
    [
        ("", "", True),
        ("agent: talker", "agent: com.docker.sandbox/talker", True),
        ("agent: talker", "agent: other", False),
        ("agent: talker", "agent: example.com/talker", False),
        ("agent: talker", "protocolVersion: 2, agent: talker", False),
    ],
)
def test_command_for_editors_is_one_of_a_provided_agent(before: str, after: str, spoken: bool, tmp_path: Path) -> None:
    text = KIT.replace("capabilities:\n", ACP, 1).replace(before, after, 1)
    assert (load_directory(write(tmp_path, text)).editor is not None) == spoken


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("agent: talker", "agent: talker@1.0"),
        ("[talker, --acp]", "[]"),
        ("[talker, --acp]", "' '"),
        ("agent: talker", "agent: talker, protocolVersion: 0"),
        (
            "capabilities:\n",
            "capabilities:\n  - {type: com.docker.sandbox/acp@1, config: {agent: talker, command: x}}\n",
        ),
    ],
)
def test_wrong_command_for_editors_is_rejected(before: str, after: str, tmp_path: Path) -> None:
    text = KIT.replace("capabilities:\n", ACP, 1).replace(before, after, 1)
    with pytest.raises(InvalidRequest):
        load_directory(write(tmp_path, text))


def test_kit_that_nests_without_end_is_rejected(tmp_path: Path) -> None:
    for text in ("[" * 100_000, "a: " + "[" * 100_000 + "]" * 100_000, "x" * (300 << 10)):
        with pytest.raises(InvalidRequest):
            load_directory(write(tmp_path, text))


def test_recipe_through_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "talker.dockerfile").symlink_to("/etc/passwd")
    with pytest.raises(InvalidRequest):
        load_directory(write(tmp_path, KIT.replace('build: |\n  FROM base\n  ENTRYPOINT ["echo"]\n', "")))


def test_missing_key_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidRequest) as error:
        find_secrets(load_kit("claude-code"))
    assert "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN is not set here" in error.value.message
    assert "claude setup-token" in str(error.value.hint)
    monkeypatch.setenv("GOOGLE_API_KEY", "another-name-of-it")
    (secret,) = find_secrets(load_kit("gemini-cli"))
    assert secret.read().value == "another-name-of-it"
    assert (secret.name, secret.read().hosts) == ("GEMINI_API_KEY", ("generativelanguage.googleapis.com",))


def test_kit_of_a_directory_gets_no_key_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kit could name any variable, and its own host for it."""
    monkeypatch.setenv("EXAMPLE_KEY", "a-key-of-the-user")
    kit = load_directory(write(tmp_path, KIT))
    with pytest.raises(InvalidRequest) as error:
        find_secrets(kit)
    assert "--secret EXAMPLE_KEY=api.example.com" in str(error.value.hint)
    assert find_secrets(kit, {"EXAMPLE_KEY"}) == ()
