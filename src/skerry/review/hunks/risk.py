"""Reasons that a change must be accepted explicitly: the file may take effect before a person looks at it.
`apply_decisions.decide` holds such changes back.

Two tables. Names are matched without regard to case (a file system may ignore it), against the last part of a path,
its directories, or the whole; a pattern without a slash matches any directory or the file itself. Formats are matched
by the end of the name. Binary files are flagged too, unless their format is a known one of data: their effect is
unknown.
"""

from __future__ import annotations

import fnmatch
import os
import re
from functools import lru_cache
from typing import Final

from skerry.review.ledger.diff import Delta

_GIT: Final = "git reads it"
_BARE: Final = "git treats its directory as a repository and obeys its settings"
_VCS: Final = "version control obeys it"
_HOOK: Final = "it is a hook that tools run automatically"
_CI: Final = "continuous integration runs it"
_EDITOR: Final = "editors act on it when they open the project"
_AGENT: Final = "coding agents take instructions from it"
_BUILD: Final = "it runs when the project is built, installed or tested"
_PACKAGES: Final = "it defines package sources or install scripts"
_SHELL: Final = "shells or other tools run it automatically"
_SKERRY: Final = "Skerry reads settings from it"
_LOADED: Final = "programs run it when they import or load it"
_PROGRAM: Final = "it is a program or installs one"
_UNPICKLED: Final = "code in it can run when it is loaded"
_MACROS: Final = "it can contain macros"

# Name of a path component → reason. A name that ends with / matches only a directory.
NAMES: Final[dict[str, str]] = {
    **dict.fromkeys((".git*", ".gitattributes", ".gitmodules", ".gitconfig", ".lfsconfig"), _GIT),
    # A bare repository needs no special name (safe.bareRepository). A new one needs HEAD; in one that is already there,
    # these files name programs to run, or lead to another repository that does. Its hooks: see `of_path`.
    **dict.fromkeys(("head", "config", "config.worktree", "commondir", "gitdir", "alternates", "*.git/"), _BARE),
    **dict.fromkeys((".hg/", ".svn/", ".bzr/", ".jj/", ".sl/", ".repo/", "_darcs/"), _VCS),
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
         ".opencode/", "opencode.json*", ".rules", ".augment/", ".trae/", "warp.md", "skill.md", ".agents/", ".agent/",
         ".qwen/", "qwen.md", ".pi/", ".factory/", ".amp/", ".crush*", "crush.json", "crush.md", ".vibe/", ".kimi/",
         ".openhands/", "openhands.md", ".hermes/", ".antigravity/", ".cline/"), _AGENT,
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
        ("node_modules/", "bower_components/", "site-packages/", "dist-packages/", ".venv/", "pyvenv.cfg",
         "__pycache__/", "__pypackages__/", ".pnp.*", "*.so.*", "*.app/", "*.framework/", "*.plugin/", "*.kext/"),
        _LOADED,
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
# End of a file name → reason: formats that a person cannot read in a diff and that act when a program loads them.
# Python, for example, runs a .pyc in place of its source.
FORMATS: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("pyc", "pyo", "pyd", "pyz", "pyzw", "egg", "whl", "so", "dylib", "bundle", "dll", "ocx", "node", "jar", "war",
         "ear", "aar", "jmod", "class", "dex", "wasm", "beam", "elc", "eln", "luac", "rbc", "phar", "bc", "o", "a",
         "lib", "rlib", "rmeta", "ko", "hi", "cmxs", "fasl", "swiftmodule", "pch", "gch", "qmlc", "jsc", "asar"),
        _LOADED,
    ),
    **dict.fromkeys(
        ("exe", "com", "scr", "cpl", "sys", "drv", "efi", "msi", "msp", "msix", "appx", "apk", "aab", "ipa", "elf",
         "appimage", "deb", "rpm", "dmg", "pkg", "flatpak", "xpi", "crx", "vsix", "nupkg", "gem", "vbs",
         "vbe", "wsf", "wsh", "hta", "jse", "msc", "scf", "reg", "command", "scpt", "workflow", "webloc"), _PROGRAM,
    ),
    **dict.fromkeys(
        ("pkl", "pickle", "dill", "joblib", "cloudpickle", "pt", "ckpt", "rdata", "rda", "rds", "marshal"),
        _UNPICKLED,
    ),
    **dict.fromkeys(
        ("docm", "dotm", "xlsm", "xltm", "xlam", "xlsb", "pptm", "potm", "ppsm", "ppam", "xll", "doc", "xls", "ppt",
         "odt", "ods", "odp"), _MACROS,
    ),
}  # fmt: skip
# Formats of data: programs run nothing in them. Formats of text are here because a long text is treated like a binary
# file.
DATA: Final = frozenset(
    """png jpg jpeg gif webp bmp ico icns cur tif tiff avif heic jxl psd xcf raw exr hdr dds ktx svgz
    mp3 wav ogg oga opus flac m4a aac aif aiff mid midi mp4 m4v mov webm mkv avi ogv mpg mpeg srt
    ttf otf ttc woff woff2 eot pdf ps epub djvu docx xlsx pptx
    gz bz2 xz zst lz4 br tar tgz tbz2 txz zip 7z rar zlib
    csv tsv json jsonl ndjson geojson xml txt log md rst sql yaml yml html css srt vtt svg tex bib po pot mo ipynb
    parquet arrow feather orc avro npy npz h5 hdf5 nc mat fits safetensors gguf tfrecord sqlite sqlite3 db mdb lmdb
    shp dbf shx las laz gpx mbtiles glb gltf obj stl ply fbx usdz pcap pcapng der cer crt p7b pb tflite onnx
    """.split()  # noqa: SIM905
)
UNKNOWN: Final = "it is binary and not in a known format of data: it may be a program"
LINK: Final = "it is a symbolic link; its target is not part of the change"
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
_ANY_FILE: Final = _matcher([name.removesuffix("/") for name in NAMES])


def of_path(path: bytes) -> tuple[str, ...]:
    directory, _, name = path.decode("utf-8", "replace").rpartition("/")
    found, folded = _of_directory(directory), _folded(name)
    if (format_reason := FORMATS.get(_suffix(folded))) is not None and format_reason not in found:
        found += (format_reason,)
    if _ANY_FILE.fullmatch(folded):  # one test in place of one for each reason
        found += tuple(reason for reason, names in _FILES if names.fullmatch(folded) and reason not in found)
    # of a bare repository: hooks/update, hooks/post-receive …
    if "." not in folded and _HOOK not in found and _folded(directory.rpartition("/")[2]) == "hooks":
        found += (_HOOK,)
    return found


@lru_cache(1024)
def _of_directory(directory: str) -> tuple[str, ...]:
    """Return the risks of every file below a directory."""
    parts = [_folded(part) for part in directory.split("/")]
    return tuple({reason: None for part in parts for reason, names in _DIRECTORIES if names.fullmatch(part)})


def of_change(delta: Delta, *, large: bool = False) -> tuple[str, ...]:
    """Return the risks of a file as a whole; each of its hunks may have fewer."""
    return tuple(sorted({*of_names(delta, large=large), *of_modes(delta.old_mode, delta.new_mode)}))


def of_names(delta: Delta, *, large: bool = False) -> set[str]:
    """Return the risks that all hunks of a file share. `large`: its content is known only by its hash."""
    found = {*of_path(delta.path), *(of_path(delta.old_path) if delta.old_path is not None else ())}
    opaque = (large or delta.binary) and delta.new_mode not in (None, "120000")
    if opaque and not found and _suffix(_folded(os.path.basename(delta.path).decode("utf-8", "replace"))) not in DATA:
        found.add(UNKNOWN)
    return found


def of_modes(old: str | None, new: str | None) -> tuple[str, ...]:
    """Return the risk of a mode change. The mode of a deleted file is harmless."""
    if new == "120000":
        return (LINK,)
    if new == "100755" and old != "100755":
        return (EXECUTABLE,)
    return ()


def _suffix(folded: str) -> str:
    """Return the end of a folded name; empty for a name without one, like ".so"."""
    stem, _, suffix = folded.rpartition(".")
    return suffix if stem else ""


def _folded(part: str) -> str:
    """Fold a name like the most permissive file systems: ignore case, invisible characters, trailing dots and
    spaces."""
    seen = part if part.isascii() else "".join(letter for letter in part if letter not in _UNSEEN)
    return seen.casefold().partition(":")[0].rstrip(". ")


_UNSEEN: Final = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)))
