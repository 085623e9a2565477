"""The shell of a session in isolation: bash with `session.bash` and a directory; persistence and robustness."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from skerry.engine.processes import session_shell

SANDBOX = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "MODE": "sandbox", "OTHER": "sandbox"}


class Session:
    """As the engine runs it, without a sandbox around it."""

    def __init__(self, place: Path, env: Mapping[str, str | None], cwd: str) -> None:
        self.place = place
        self.sandbox = dict(SANDBOX)
        self.runs = 0
        self.hint: str | None = None
        self.cwd = cwd
        place.mkdir()
        (place / "shell").write_bytes(session_shell.script())
        (place / "0").write_bytes(session_shell.first_state(cwd, env))
        (place / "1").touch()

    def run(
        self, cmd: str | list[str], given: Mapping[str, str | None] | None = None, start: str | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        self.runs += 1
        mark = f"run{self.runs}"
        passed = session_shell.environment(str(self.place), mark, "/usr", start, given or {}, self.sandbox)
        env = {name: value for name, value in (self.sandbox | passed).items() if value is not None}
        argv = session_shell.argv("/bin/bash", cmd)
        done = subprocess.run(
            argv, env=env, cwd=start or "/", capture_output=True, timeout=60, stdin=subprocess.DEVNULL
        )
        left = session_shell.decode_last((self.place / "last").read_bytes()) if (self.place / "last").exists() else None
        self.hint = session_shell.hint(mark, done.returncode < 0, left)
        if left is not None:
            self.cwd = left.cwd
        return done

    def out(self, cmd: str | list[str], given: Mapping[str, str | None] | None = None, start: str | None = None) -> str:
        """A command that has to go well, and its output."""
        done = self.run(cmd, given, start)
        assert (done.returncode, done.stderr, self.hint) == (0, b"", None)
        return done.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "state", {}, "/tmp")


def test_new_session_starts_in_the_requested_directory(session: Session) -> None:
    assert session.out("pwd") == "/tmp\n"
    assert session.cwd == "/tmp"


def test_directory_with_any_name_persists(session: Session, tmp_path: Path) -> None:
    for name in ("a b", "n\nl\n", "q'\"$x`", "-dash", "ü"):
        place = tmp_path / name
        place.mkdir()
        session.out(["cd", str(place)])
        assert session.cwd == str(place)
        assert session.out("pwd; cd -- .") == f"{place}\n"


def test_state_that_cannot_be_read_back_is_not_saved(session: Session) -> None:
    """As on a disk that is full for a moment: functions and variables must not vanish from a state that counts."""
    session.out("A=1; greet() { echo hello; }")
    (session.place / "scratch").unlink()
    (session.place / "scratch").mkdir()
    session.run("A=2", {"B": "1"})
    assert session.hint is not None
    assert "the session is as it was before" in session.hint
    (session.place / "scratch").rmdir()
    assert session.out("greet; echo $A") == "hello\n1\n"


def test_report_is_written_over_a_longer_one(session: Session, tmp_path: Path) -> None:
    (tmp_path / ("x" * 200)).mkdir()
    session.out(f"cd {tmp_path}/xx*")
    session.out("cd /usr")
    assert session.cwd == "/usr"


def test_cd_minus_and_the_directory_stack_persist(session: Session) -> None:
    session.out("cd /usr; pushd /bin; pushd /etc")
    assert session.out("dirs") == "/etc /bin /usr\n"
    assert session.out("popd; cd -; pwd") == "/bin /usr\n/etc\n/etc\n"


def test_removed_directory_is_reported_and_the_default_one_used(session: Session, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    session.out(f"cd {tmp_path}/gone")
    session.out("rmdir $PWD")
    assert session.run("pwd").stdout == b"/usr\n"
    assert session.hint is not None
    assert "directory was gone" in session.hint
    assert session.out("pwd") == "/usr\n"


VALUES = [
    r"""v=$'two\nlines'""",
    r"""v='single '\'' double " back \\ dollar $HOME tick `id` bang !'""",
    r"""v=$'\377\376 not UTF-8'""",
    r"""v=''""",
    r"""v=$'\001\033[31m\t'""",
    r"""export v=exported""",
    r"""declare -i v=41""",
    r"""declare -u v=upper""",
    r"""declare -r v=constant""",
    r"""declare -rx v=both""",
    r"""v=()""",
    r"""v=(1 'two 2' $'three\n3' [7]=seven)""",
    r"""declare -ax v=(1 2)""",
    r"""declare -A v=(['k 1']=a [']']=b ['"']=c [$'\n']=d ['$x']=e ["'"]=f [@]=g)""",
    r"""target=there; declare -n v=target""",
    r"""declare -n v=not_there_yet""",
]


@pytest.mark.parametrize("assignment", VALUES)
def test_variable_of_any_kind_persists(session: Session, assignment: str) -> None:
    before = session.run(f"{assignment}; declare -p v").stdout
    assert before.startswith(b"declare ")
    assert session.run("declare -p v").stdout == before
    assert session.run("declare -p v").stdout == before


def test_restored_attributes_work(session: Session) -> None:
    session.out("declare -i n=1; declare -u up; up=a; target=x; declare -n ref=target; readonly fixed=1")
    assert session.out("n=n+1; up=b; ref=y; echo $n $up $target") == "2 B y\n"
    assert b"readonly" in session.run("fixed=2").stderr
    assert session.out("echo $fixed") == "1\n"


FUNCTIONS = [
    'f() { cat <<EOF\nhere $1 "q" $(echo sub)\n  EOF\nEOF\n}',
    "f() { cat <<-'X' | tr a-z A-Z\n\tlit $1\n\tX\n}",
    "f() (echo subshell; exit 0)",
    "f() { case $1 in a | b) echo \"'$1'\" ;; esac; } 2>&1",
    "f() { local -A m=([k]=v); echo ${m[k]} $'\\t'; for ((i = 0; i < 2; i++)); do echo $i; done; }",
    "shopt -s extglob\nf() { case $1 in +(a|b)) echo ext ;; esac; [[ $1 == !(x) ]] && echo not; }",
]


@pytest.mark.parametrize("definition", FUNCTIONS)
def test_function_of_any_kind_persists(session: Session, definition: str) -> None:
    before = session.out(f"{definition}\nf a")
    assert before
    assert session.out("f a") == before
    assert session.out(["f", "a"]) == before


def test_functions_keep_their_names_and_attributes(session: Session) -> None:
    session.out("a-b() { echo 1; }; function c:d { echo 2; }; e() { echo 3; }; export -f e; declare -fr a-b")
    assert session.out("a-b; c:d; bash -c e") == "1\n2\n3\n"
    assert b"readonly" in session.run("a-b() { :; }").stderr


def test_options_persist(session: Session) -> None:
    session.out("set -uf -o noclobber -o pipefail; shopt -s globstar nullglob; shopt -u sourcepath; umask 027")
    assert session.out("echo ${-//[^uCf]}; umask; shopt -p globstar nullglob sourcepath; set -o | grep pipefail") == (
        "fuC\n0027\nshopt -s globstar\nshopt -s nullglob\nshopt -u sourcepath\npipefail       \ton\n"
    )
    session.out("set +uf +o noclobber; set +o braceexpand; shopt -u globstar")
    assert session.out("echo {a,b} ${unset-}") == "{a,b}\n"


def test_set_e_ends_one_command_and_not_the_session(session: Session) -> None:
    done = session.run("set -e; A=1; false; echo not here")
    assert (done.returncode, done.stdout, session.hint) == (1, b"", None)
    assert session.run("echo $A; false; echo not here").stdout == b"1\n"
    assert session.out("echo $A; set +e") == "1\n"


def test_trace_shows_only_the_command(session: Session) -> None:
    assert session.run("set -x; echo 1").stderr == b"+ echo 1\n"
    assert session.run("echo 2; trap 'echo end' EXIT").stderr == b"+ echo 2\n+ trap 'echo end' EXIT\n"
    session.run("set +x")
    assert session.out("echo 3") == "3\n"


def test_posix_mode_persists_and_can_be_turned_off(session: Session) -> None:
    session.out("set -o posix; A=1")
    assert session.out("echo $A; set -o | grep posix; set +o posix") == "1\nposix          \ton\n"
    assert session.out("echo $A; set -o | grep posix") == "1\nposix          \toff\n"


@pytest.mark.parametrize("option", ["set -n", "set -o noexec", "set -t; :"])
def test_no_option_breaks_a_session_permanently(session: Session, option: str) -> None:
    session.run(option)
    session.run(":")
    assert session.run("echo 1; echo 2").stdout == b"1\n2\n"


def test_aliases_persist(session: Session) -> None:
    session.out("""shopt -s expand_aliases; alias say='echo said' 'q=echo "it'"'"'s"'; alias {set,builtin}='echo no'""")
    assert session.out("say this; q; f() { say $1; }") == "said this\nit's\n"
    assert session.out("f x; say y") == "said x\nsaid y\n"


def test_traps_on_signals_and_errors_persist(session: Session) -> None:
    session.out("trap 'echo \"it'\"'\"'s\" USR1' USR1; trap 'echo failed' ERR; trap '' PIPE")
    assert session.run("kill -USR1 $$; false").stdout == b"it's USR1\nfailed\n"
    assert session.out("trap - USR1 ERR; trap -p | grep -v EXIT | grep PIPE") == "trap -- '' SIGPIPE\n"


def test_exit_trap_runs_after_the_command_and_its_state_persists(session: Session) -> None:
    done = session.run("trap 'echo bye $?' EXIT; A=1; exit 4")
    assert (done.returncode, done.stdout, session.hint) == (4, b"bye 4\n", None)
    assert session.out("echo $A") == "1\n"
    assert session.run("trap 'exit 9' 0").returncode == 9
    assert session.out("trap 'echo no' EXIT INT; trap - EXIT; (trap 'echo sub' EXIT); trap -p INT") == (
        "sub\ntrap -- 'echo no' SIGINT\n"
    )


def test_status_of_the_previous_command_is_available(session: Session) -> None:
    assert session.run("exit 3").returncode == 3
    assert session.out("echo $?") == "3\n"
    session.run("set -e; exit 5")
    assert session.out("echo $?; set +e") == "5\n"


def test_syntax_error_fails_only_its_command(session: Session) -> None:
    session.out("A=1")
    broken = session.run("if")
    assert broken.returncode == 2
    assert broken.stderr == b"/bin/bash: -c: line 2: syntax error: unexpected end of file\n"
    assert session.run("echo ${unset:?}").returncode == 127
    assert session.out("echo $A") == "1\n"


def test_line_may_begin_with_a_dash(session: Session) -> None:
    assert session.run("--version").returncode == 127
    assert session.run("-c").returncode == 127


HOSTILE = ["cd", "builtin", "declare", "eval", "export", "local", "mapfile", "printf", "pwd", "read", "return", "set",
           "shift", "shopt", "trap", "ulimit", "umask", "unset", "alias", "echo", "exit", "test", "["]  # fmt: skip


def test_functions_named_like_internal_commands_are_harmless(session: Session) -> None:
    session.run("cd /usr; A=1; " + " ".join(f"function {name} {{ :; }};" for name in HOSTILE))
    assert session.hint is None
    assert session.run("command printf '%s %s\\n' $A $PWD").stdout == b"1 /usr\n"
    session.run("A=2; command cd /bin")
    assert session.run("command printf '%s %s\\n' $A $PWD").stdout == b"2 /bin\n"


def test_odd_special_variables_are_harmless(session: Session) -> None:
    session.run(
        "IFS=_; PATH=; BASH_ENV=/x; unset PWD OLDPWD DIRSTACK; SECONDS=5; RANDOM=1; OPTIND=9; GLOBIGNORE=a; A=1"
    )
    session.run("cd /usr; readonly IFS PATH; LC_ALL=C; TMOUT=1; FUNCNEST=20; BASH_COMPAT=4.4; HISTCONTROL=x")
    assert session.hint is None
    done = session.run("x=a_b; echo $x $A $PWD $BASH_ENV; echo ${PATH:-empty}")
    assert done.stdout == b"a b 1 /usr /x\nempty\n"


def test_environment_of_a_command_has_no_internal_variables(session: Session) -> None:
    shown = session.out("env", {"GIVEN": "1"})
    assert not [line for line in shown.splitlines() if "skerry" in line.lower() or line.startswith("BASH_ENV")]


def test_killed_command_leaves_the_state_unchanged(session: Session) -> None:
    session.out("A=1; cd /usr")
    assert session.run("A=2; cd /bin; kill -9 $$").returncode == -9
    assert session.hint == "the session is as it was before this command"
    assert session.out("echo $A; pwd") == "1\n/usr\n"


def test_command_that_ends_by_another_signal_saves_its_state(session: Session) -> None:
    assert session.run("A=1; kill -TERM $$").returncode == -15
    assert session.hint is None
    assert session.out("echo $A") == "1\n"


def test_shell_that_ends_without_saving_reports_it(session: Session) -> None:
    session.out("A=1")
    session.run("A=2; exec true")
    assert session.hint is not None
    assert "without saving" in session.hint
    assert session.out("echo $A") == "1\n"


def test_oversized_state_is_not_saved(session: Session) -> None:
    session.out("A=1")
    done = session.run("A=2; big=$(head -c 5000000 /dev/zero | tr '\\0' x); echo ${#big}")
    assert (done.returncode, done.stdout) == (0, b"5000000\n")
    assert session.hint is not None
    assert "4 MiB" in session.hint
    assert session.out("echo $A ${#big}") == "1 0\n"


def test_partially_written_state_is_ignored(session: Session) -> None:
    session.out("A=1")
    session.out("A=2")
    newer = max((session.place / name for name in "01"), key=lambda file: int(file.read_text().split()[3]))
    text = newer.read_bytes()
    for length in range(0, len(text) - 1, 7):
        newer.write_bytes(text[:length])
        copy = session.place.parent / f"copy{length}"
        shutil.copytree(session.place, copy)
        session.place, before = copy, session.place
        assert session.out("echo $A") == "1\n"
        session.place = before


@pytest.mark.parametrize("garbage", [b"", b"\0\xff\n", b"# skerry-session 1 9 kept\nif then\n__skerry_whole=9\n",
                                     b"# skerry-session 1 99999999999999999999 kept\n__skerry_whole=1\n"])  # fmt: skip
def test_damaged_state_is_reported_and_the_session_continues(session: Session, garbage: bytes) -> None:
    session.out("A=1")
    for name in "01":
        (session.place / name).write_bytes(garbage)
    assert session.run("echo ${A-none}; A=2").stdout == b"none\n"
    assert session.hint is not None
    assert "damaged" in session.hint
    assert session.out("echo $A") == "2\n"


def test_hostile_state_file_is_read_safely() -> None:
    assert session_shell.decode_last(b"") is None
    assert session_shell.decode_last(b"a\nb\n") is None
    assert session_shell.decode_last(b"a\nb\nrelative") is None
    left = session_shell.decode_last(b"r\nkept\n/\xff\nx")
    assert left is not None
    assert left.cwd == "/\\xff\nx"
    assert len(session_shell.decode_last(b"r\nkept\n/" + b"x" * 10_000).cwd) == 4096  # type: ignore[union-attr]


def test_environment_order_is_sandbox_session_command(tmp_path: Path) -> None:
    session = Session(tmp_path / "state", {"MODE": "session", "OTHER": None, "OWN": "it's"}, "/tmp")
    show = "echo $MODE ${OTHER-unset} ${OWN-unset}"
    assert session.out(show) == "session unset it's\n"
    assert session.out(f"{show}; printenv MODE", {"MODE": "command", "OTHER": "command", "OWN": None}) == (
        "command command unset\ncommand\n"
    )
    assert session.out(show) == "session unset it's\n"


def test_variable_of_a_command_persists_only_if_changed(session: Session) -> None:
    session.out("declare -i n=3; list=(1 2); S=mine")
    given: dict[str, str | None] = {"n": "4+4", "list": "x", "S": "s", "NEW": "new", "MODE": "m", "OTHER": "o"}
    assert session.out("echo $n ${list[*]} $S $NEW; S=changed; unset OTHER", given) == "4+4 x s new\n"
    assert session.out("echo $n ${list[*]} $S ${NEW-unset} $MODE ${OTHER-unset}; n=n+1; echo $n") == (
        "3 1 2 changed unset sandbox unset\n4\n"
    )
    assert session.out("declare -p list S") == 'declare -a list=([0]="1" [1]="2")\ndeclare -x S="changed"\n'


def test_sandbox_variable_change_is_visible_unless_the_session_overrides_it(session: Session) -> None:
    session.out("OTHER=own; unset MODE")
    session.sandbox |= {"MODE": "new", "OTHER": "new", "ADDED": "new"}
    assert session.out("echo ${MODE-unset} $OTHER $ADDED") == "unset own new\n"
    session.sandbox |= {"ADDED": "newer"}
    assert session.out("echo ${MODE-unset} $OTHER $ADDED") == "unset own newer\n"


def test_odd_variable_names_are_passed(session: Session) -> None:
    given: dict[str, str | None] = {"name": "1", "rest": "2", "BASH_ENV": "/x", "a.b": "3", "UID": "9", "é": "4"}
    assert session.out("echo $name $rest $BASH_ENV; printenv a.b é BASH_ENV", given) == "1 2 /x\n3\n4\n/x\n"
    assert session.out("echo ${name-unset} ${BASH_ENV-unset}") == "unset unset\n"


def test_sessions_work_in_posix_mode(session: Session) -> None:
    session.sandbox["POSIXLY_CORRECT"] = "1"
    session.out("A=1")
    assert session.out("echo $A; set -o | grep posix") == "1\nposix          \ton\n"


def test_directory_of_a_command_persists_only_if_it_changed(session: Session) -> None:
    assert session.out("pwd", start="/usr") == "/usr\n"
    assert session.out("pwd") == "/tmp\n"
    assert session.out("cd /bin", start="/usr") == ""
    assert session.out("pwd") == "/bin\n"


def test_only_the_first_command_reads_the_profile(session: Session, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".profile").write_text("COUNT=$((COUNT + 1)); PROFILE=read\n")
    session.sandbox["HOME"] = str(home)
    assert session.out("echo $PROFILE $COUNT", {"PROFILE": "given"}) == "given 1\n"
    assert session.out("echo $PROFILE $COUNT") == "read 1\n"
