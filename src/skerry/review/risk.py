"""Why a change needs accepting by itself: it may do something before anybody looks at it.

A table of names, matched without regard to case (a file system may have none), against the last part of a path, its
directories, or the whole. A pattern without a slash is of any part that is a directory or the file itself.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Final

from skerry.review.deltas import Delta

_GIT: Final = "git reads it"
_BARE: Final = "git takes a directory with it for a repository, and obeys its settings"
_HOOK: Final = "it is a hook, which tools run by themselves"
_CI: Final = "continuous integration runs it"
_EDITOR: Final = "editors act on it when they open the project"
_AGENT: Final = "coding agents take instructions from it"
_BUILD: Final = "it runs when the project is built, installed or tested"
_PACKAGES: Final = "it says where packages come from, or what runs when they are installed"
_SHELL: Final = "shells or other tools run it by themselves"
_SKERRY: Final = "Skerry takes settings from it"

# What a part of the path is called → why. A name that ends with / is of a directory.
NAMES: Final[dict[str, str]] = {
    **dict.fromkeys((".git*", ".gitattributes", ".gitmodules", ".gitconfig", ".lfsconfig"), _GIT),
    "head": _BARE,  # without it, objects, refs and a config are no bare repository (safe.bareRepository)
    **dict.fromkeys(
        (".husky/", ".githooks/", ".git-hooks/", "applypatch-msg", "commit-msg", "pre-applypatch", "pre-commit",
         "pre-merge-commit", "pre-push", "pre-rebase", "prepare-commit-msg", "post-applypatch", "post-checkout",
         "post-commit", "post-merge", "post-rewrite", "post-index-change", "fsmonitor-watchman",
         ".pre-commit-config.y*ml", ".pre-commit-hooks.y*ml", "lefthook.y*ml", ".lefthook.y*ml", ".overcommit.yml",
         ".lintstagedrc*", ".huskyrc*"), _HOOK,
    ),
    **dict.fromkeys(
        (".github/", ".gitlab/", ".gitlab-ci.y*ml", ".circleci/", ".buildkite/", ".travis.y*ml", "jenkinsfile*",
         ".jenkins/", "azure-pipelines*.y*ml", ".azure-pipelines/", "bitbucket-pipelines.y*ml", ".drone.y*ml",
         ".woodpecker/", ".woodpecker.y*ml", ".forgejo/", ".gitea/", "appveyor.y*ml", ".appveyor.y*ml", ".cirrus.y*ml",
         "cloudbuild.y*ml", "buildspec.y*ml", ".teamcity/", ".builds/", ".build.yml", "codemagic.y*ml", ".tekton/",
         "renovate.json*", "dependabot.y*ml"), _CI,
    ),
    **dict.fromkeys(
        (".vscode/", ".vscode-insiders/", "*.code-workspace", ".idea/", "*.iml", ".fleet/", ".zed/", ".vs/",
         ".nvim/", ".nvimrc", ".nvim.lua", ".exrc", ".vimrc", ".lvimrc", ".dir-locals.el", ".dir-locals-2.el",
         ".sublime-project", "*.sublime-project", ".project", ".classpath", ".settings/", ".devcontainer/",
         ".devcontainer.json", ".gitpod.y*ml", ".helix/", ".kakrc", ".eclipse/"), _EDITOR,
    ),
    **dict.fromkeys(
        (".claude/", ".claude.json", "claude.md", "claude.local.md", "agents.md", "agent.md", "gemini.md", ".gemini/",
         ".cursor/", ".cursorrules", ".cursorignore", ".windsurf/", ".windsurfrules", ".clinerules*", ".roo/",
         ".roomodes", ".roorules*", ".kilocode/", ".continue/", ".codex/", ".aider*", ".mcp.json", "mcp.json",
         ".copilot/", "copilot-instructions.md", ".junie/", ".amazonq/", ".kiro/", ".goosehints", ".goose/",
         ".opencode/", "opencode.json*", ".rules", ".augment/", ".trae/", "warp.md", "skill.md"), _AGENT,
    ),
    **dict.fromkeys(
        ("makefile", "gnumakefile", "*.mk", "*.mak", "justfile", ".justfile", "taskfile.y*ml", "rakefile", "*.rake",
         "setup.py", "setup.cfg", "pyproject.toml", "conftest.py", "noxfile.py", "tox.ini", "pytest.ini", "tasks.py",
         "sitecustomize.py", "usercustomize.py", "*.pth", "build.rs", ".cargo/", "cargo.toml", "rust-toolchain*",
         "*.gradle", "*.gradle.kts", "gradle.properties", "gradlew*", "gradle-wrapper.*", "pom.xml", ".mvn/", "mvnw*",
         "build.sbt", "cmakelists.txt", "*.cmake", "cmakepresets.json", "meson.build", "configure", "configure.ac",
         "wscript", "sconstruct", "sconscript", "build", "build.bazel", "workspace", "workspace.bazel", "module.bazel",
         ".bazelrc", "*.bzl", "*.csproj", "*.vbproj", "*.fsproj", "*.sln", "*.vcxproj*", "*.props", "*.targets",
         "nuget.config", "global.json", "dockerfile*", "containerfile*", "*.dockerfile", "compose*.y*ml",
         "docker-compose*.y*ml", "docker-bake.*", "vagrantfile", "procfile*", "gemfile", "*.gemspec", "podfile",
         "package.swift", "*.pbxproj", "*.xcscheme", "mix.exs", "rebar.config", "dune-project", "build.zig", "*.cabal",
         "flake.nix", "default.nix", "shell.nix", "gruntfile.*", "gulpfile.*", "webpack.config.*", "vite.config.*",
         "rollup.config.*", "babel.config.*", ".babelrc*", "jest.config.*", "vitest.config.*", "eslint.config.*",
         ".eslintrc*", ".prettierrc*", "prettier.config.*", "postcss.config.*", "tailwind.config.*", "next.config.*",
         "nuxt.config.*", "svelte.config.*", "metro.config.*", "karma.conf.*", "deno.json*", "nodemon.json",
         "turbo.json", "nx.json", "lerna.json"), _BUILD,
    ),
    **dict.fromkeys(
        ("package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", ".yarnrc*", ".yarn/", ".npmrc",
         ".pnpmfile.*", "pnpm-lock.yaml", "pnpm-workspace.yaml", "bun.lock*", "bunfig.toml", ".nvmrc", "pip.conf",
         "pip.ini", ".pypirc", "requirements*.txt", "constraints*.txt", "pipfile*", "poetry.lock", "uv.lock", "uv.toml",
         "pdm.lock", "environment.y*ml", ".condarc", "cargo.lock", "go.mod", "go.sum", "go.work", "composer.json",
         "composer.lock", "gemfile.lock", ".bundle/"), _PACKAGES,
    ),
    **dict.fromkeys(
        (".envrc", ".env", ".env.*", ".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".inputrc",
         ".tool-versions", ".mise.toml", "mise.toml", ".mise/", ".rtx.toml", ".ssh/", ".gdbinit", ".lldbinit",
         ".pythonrc*", ".irbrc", ".tmux.conf", ".screenrc", ".wgetrc", ".curlrc", ".netrc", ".gnupg/", ".aws/",
         ".kube/", ".docker/", "autorun.inf", "desktop.ini", "*.desktop", "*.lnk", "*.url", "*.bat", "*.cmd", "*.ps1"),
        _SHELL,
    ),
    **dict.fromkeys(("skerry.toml", ".skerry/"), _SKERRY),
}  # fmt: skip
LINK: Final = "it is a link, and says nothing of what it leads to"
EXECUTABLE: Final = "it becomes executable"


def _matcher(names: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(name) for name in names))


def _grouped(directories: bool) -> list[tuple[str, re.Pattern[str]]]:
    found: dict[str, list[str]] = {}
    for name, reason in NAMES.items():
        if name.endswith("/") or not directories:
            found.setdefault(reason, []).append(name.removesuffix("/"))
    return [(reason, _matcher(names)) for reason, names in found.items()]


_DIRECTORIES: Final = [*_grouped(True), (_GIT, _matcher([".git*"]))]
_FILES: Final = _grouped(False)


def of_path(path: bytes) -> tuple[str, ...]:
    parts = [_folded(part) for part in path.decode("utf-8", "replace").split("/")]
    found = {reason: None for part in parts[:-1] for reason, names in _DIRECTORIES if names.fullmatch(part)}
    found |= {reason: None for reason, names in _FILES if names.fullmatch(parts[-1])}
    return tuple(found)


def of_change(delta: Delta) -> tuple[str, ...]:
    """Of a file as a whole; each of its hunks may have less."""
    paths = {*of_path(delta.path), *(of_path(delta.old_path) if delta.old_path is not None else ())}
    return tuple(sorted(paths | set(of_modes(delta.old_mode, delta.new_mode))))


def of_modes(old: str | None, new: str | None) -> tuple[str, ...]:
    """Of a file that goes there is nothing to fear from its mode."""
    if new == "120000":
        return (LINK,)
    if new == "100755" and old != "100755":
        return (EXECUTABLE,)
    return ()


def _folded(part: str) -> str:
    """As the most forgiving of file systems would take it: no case, nothing invisible, no dots or spaces behind."""
    seen = "".join(letter for letter in part if letter not in _UNSEEN)
    return seen.casefold().partition(":")[0].rstrip(". ")


_UNSEEN: Final = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)))
