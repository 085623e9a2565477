"""Code of languages without contexts: a file that is written, compiled, run and removed, in real sandboxes.

The base image has perl. Python's bytecode compiler is added as a language of the operator; the soak test at the end
installs and tries the other toolchains."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from integration.test_presets import reaches
from support.server import Server, wait_until, with_enough_time

from skerry import Image, InvalidRequest, Limits, Sandbox, ToolchainMissing
from skerry.client.results.code import CodeResultBase

OPERATORS = """
[languages.pyc]
aliases = ["bytecode"]
file = "main.py"
version = ["python3", "--version"]
compile = ["python3", "-c", "import py_compile; py_compile.compile('{file}', cfile='{out}', doraise=True)"]
run = ["python3", "{out}"]
env = { PLACE = "{dir}", COLOUR = "blue" }
note = "it is compiled ahead of its run"
versions = { "3" = "base", "2" = "python:2" }

[languages.broken]
run = ["/etc/passwd", "{file}"]

[languages.slow]
compile = ["sleep", "1000"]
run = ["true", "{file}"]

[languages.halves]
compile = ["true", "{file}"]
run = ["no-such-program", "{file}"]
"""
PLACES = "/tmp/skerry-code-*"


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[Sandbox]:
    with Sandbox(server=server.address) as made:
        yield made


@pytest.fixture
def sandbox(shared: Sandbox) -> Iterator[Sandbox]:
    """With nothing left behind by any test."""
    yield shared
    wait_until(lambda: places(shared) == [], "what was written is removed")


def places(sandbox: Sandbox) -> list[str]:
    return sandbox.run(f"ls -d {PLACES} 2>/dev/null", user="root").stdout.split()


def test_make_and_gh_of_base_run(shared: Sandbox) -> None:
    shared.files.write("made/Makefile", "answer: answer.c\n\t$(CC) -o $@ $<\n")
    shared.files.write("made/answer.c", '#include <stdio.h>\nint main(void) { puts("42"); }\n')
    built = shared.run("make -s -C made && ./made/answer")
    assert (built.stdout, built.exit_code) == ("42\n", 0), built.stderr
    if shared.run("command -v gh").ok:  # not every distribution has it
        assert shared.run("gh --version").stdout.startswith("gh version")


def told(result: CodeResultBase) -> tuple[str, str, int | None]:
    assert result.error is not None, result.stdout + result.stderr
    return result.error.name, result.error.message, result.error.line


# -- perl, which the base image has -----------------------------------------------------------------------------------


def test_perl_runs_with_output_and_input(sandbox: Sandbox) -> None:
    result = sandbox.code.run('print "hello\\n"; print STDERR "beside\\n"; print 2 * <STDIN>;', "perl", stdin="21\n")
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("hello\n42", "beside\n", 0, None)
    assert result.ok
    assert (result.language, result.context) == ("perl", None)
    assert sandbox.run("perl -e 'print $^V'").stdout == f"v{result.version}"
    assert result.usage.cpu_s > 0
    assert sandbox.code.run("print 'more: ' . <STDIN>", "pl").stdout == "more: "


def test_perl_error_has_its_message_and_line(sandbox: Sandbox) -> None:
    result = sandbox.code.run('print "before\\n";\n\nsub f { die "boom" }\nf();', "perl")
    assert (result.stdout, result.exit_code, result.ok) == ("before\n", 255, False)
    assert told(result) == ("Error", "boom", 3)
    assert result.error is not None
    assert result.error.traceback == "boom at main.pl line 3."
    assert told(sandbox.code.run("print 1;\nprint (;\n", "perl"))[2] == 2
    assert told(sandbox.code.run("exit 7", "perl")) == ("Error", "exit code 7", None)
    assert told(sandbox.code.run("kill 'SEGV', $$; sleep 9", "perl"))[:2] == ("SIGSEGV", "Segmentation fault")


def test_timeout_ends_an_endless_loop_with_its_children(sandbox: Sandbox) -> None:
    code = '$| = 1; print "began\\n"; system("sleep 12345 &"); 1 while 1;'
    result = with_enough_time(
        lambda timeout: sandbox.code.run(code, "perl", timeout=timeout), lambda result: bool(result.stdout)
    )
    assert (result.stdout, result.timed_out, result.exit_code) == ("began\n", True, None)
    assert told(result)[0] == "Interrupted"
    assert "timeout" in (result.hint or "")
    assert sandbox.run("pgrep -f 'sleep 1234[5]'").exit_code == 1


def test_runs_share_no_state(sandbox: Sandbox) -> None:
    sandbox.code.run("our $x = 1; $ENV{X} = 1; chdir '/';", "perl")
    assert sandbox.code.run("our $x; print defined $x, defined $ENV{X}, `pwd`", "perl").stdout == "/workspace\n"
    with pytest.raises(InvalidRequest):
        sandbox.code.context("perl")


def test_code_runs_in_the_requested_directory_as_the_requested_user(sandbox: Sandbox) -> None:
    show = 'print join " ", `id -un`, `pwd`, $ENV{A} // "none";'
    assert sandbox.code.run(show, "perl").stdout.split() == ["user", "/workspace", "none"]
    mine = sandbox.code.run(show, "perl", cwd="/etc", env={"A": "1"}, user="root")
    assert mine.stdout.split() == ["root", "/etc", "1"]


def test_source_file_is_private_and_removed_after_the_run(sandbox: Sandbox) -> None:
    looks = "print sprintf('%o', (stat $_)[2] & 07777), ' ' for ($0 =~ s{/[^/]*$}{}r, $0); print $0"
    assert re.fullmatch(r"700 600 /tmp/skerry-code-[0-9a-f]{16}/main\.pl", sandbox.code.run(looks, "perl").stdout)
    hides = "system 'cd $(dirname ' . $0 . ') && mkdir a && touch a/b && sudo chown -R root . && sudo chmod 0 a'"
    assert sandbox.code.run(hides, "perl").ok
    swaps = '$d = $0 =~ s{/[^/]*$}{}r; rename $d, "$d.away"; symlink \'/etc\', $d; system "rm -r $d.away"'
    assert sandbox.code.run(swaps, "perl").ok
    assert sandbox.run("test -e /etc/passwd && test -d /workspace").ok


def test_created_files_are_reported_and_readable(sandbox: Sandbox) -> None:
    makes = 'open F, ">", "made.csv"; print F "a,b\\n"; close F; mkdir "d"; system "cp made.csv d/e.png"'
    result = sandbox.code.run(makes, "perl")
    told = {file.path: (file.size, file.media_type) for file in result.files}
    assert told == {"/workspace/made.csv": (4, "text/csv"), "/workspace/d/e.png": (4, "image/png")}
    assert result.files[0].read_text() == "a,b\n"
    assert sandbox.code.run("print 1", "perl").files == ()
    at_tmp = sandbox.code.run("open F, '>', 'x'", "perl", cwd="/tmp")
    assert [file.path for file in at_tmp.files] == ["/tmp/x"]
    broken = sandbox.code.run("open('left', 'w').write('x')\nraise SystemExit(3)", "pyc")
    assert ([file.name for file in broken.files], broken.exit_code) == (["left"], 3)


def test_large_non_utf8_output_is_bounded(sandbox: Sandbox) -> None:
    result = sandbox.code.run(r'print "\xff\xfe\0"; print STDERR "x" x 3_000_000, "\nlast\n"; exit 1', "perl")
    assert result.stdout_bytes == b"\xff\xfe\0"
    assert result.truncated
    assert told(result)[1] == "last"
    assert result.error is not None
    assert len(result.error.traceback) < 100_000


def test_disconnect_ends_the_run_and_leaves_nothing(sandbox: Sandbox) -> None:
    events = sandbox.code.stream('$| = 1; print "began\\n"; system("exec sleep 54321")', "perl")
    assert next(event.type for event in events) == "stdout"
    assert len(places(sandbox)) == 1
    events.close()  # type: ignore[attr-defined]
    wait_until(lambda: sandbox.run("pgrep -f 'sleep 5432[1]'").exit_code == 1, "it is killed")


def test_concurrent_runs_do_not_interfere(sandbox: Sandbox) -> None:
    runs = [sandbox.code.stream(f"$| = 1; print {n}; sleep 1000", "perl") for n in range(3)]
    assert [next(run).data for run in runs] == [b"0", b"1", b"2"]
    assert len(places(sandbox)) == 3
    for run in runs:
        run.close()  # type: ignore[attr-defined]


def test_changes_are_attributed_to_the_code_run(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.review.start()
        sandbox.code.run("\nopen F, '>', 'made'; print F 'x'", "perl")
        result = sandbox.code.run("open('compiled', 'w').write('x')", "pyc")
        names = [(entry.kind, entry.command) for entry in sandbox.review.history().entries[1:] if entry.files]
        assert names == [
            ("command", "perl: open F, '>', 'made'; print F 'x'"),
            ("command", "pyc: open('compiled', 'w').write('x')"),
        ]
        # The compiler is a process of the same run; whether its end was collected apart depends on the moment.
        assert sandbox.review.history().entries[-1].processes[-1] == result.id


def test_bash_without_state_runs_as_a_script(sandbox: Sandbox) -> None:
    result = sandbox.code.run("read x\necho got $x\nnonsense", "bash", fresh=True, stdin="in\n")
    assert (result.stdout, result.exit_code, result.context) == ("got in\n", 127, None)
    assert told(result) == ("Error", "nonsense: command not found", 3)


# -- one that is compiled ---------------------------------------------------------------------------------------------


def test_compiled_code_runs_in_the_workspace(sandbox: Sandbox) -> None:
    code = "import os, sys\nprint(os.getcwd(), input(), os.environ['COLOUR'], os.environ['PLACE'] in __file__)"
    result = sandbox.code.run(code, "bytecode", stdin="in\n")
    assert result.stdout == "/workspace in blue True\n", result.stderr
    assert sandbox.code.run("import os; print(os.environ['COLOUR'])", "pyc", env={"COLOUR": "red"}).stdout == "red\n"


def test_compiler_output_and_exit_code_are_the_error(sandbox: Sandbox) -> None:
    result = sandbox.code.run("print('never')\nx = = 1\n", "pyc")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert result.error is not None
    assert result.error.name == "CompileError"
    assert "SyntaxError: invalid syntax" in result.error.traceback
    assert "SyntaxError: invalid syntax" in result.stderr
    assert result.hint == "it is compiled ahead of its run"


def test_timeout_covers_compiler_and_program(sandbox: Sandbox) -> None:
    slow = sandbox.code.run("", "slow", timeout=0.5)
    assert (slow.timed_out, told(slow)[0]) == (True, "Interrupted")
    code = "print('began', flush=True)\nwhile True: pass"
    program = with_enough_time(
        lambda timeout: sandbox.code.run(code, "pyc", timeout=timeout), lambda program: bool(program.stdout), 1.5
    )
    assert (program.timed_out, program.stdout) == (True, "began\n")
    assert sandbox.run("pgrep -f 'sleep 100[0]'").exit_code == 1


def test_usage_is_measured_for_the_program(sandbox: Sandbox) -> None:
    result = sandbox.code.run("x = bytearray(150 << 20)\nfor i in range(len(x) >> 12): x[i << 12] = 1", "pyc")
    assert (result.usage.memory_peak or 0) > 150 << 20


def test_out_of_memory_is_reported(server: Server) -> None:
    with Sandbox(server=server.address, limits=Limits(memory="128M")) as small:
        result = small.code.run("x = bytearray(1 << 29)\nfor i in range(len(x) >> 12): x[i << 12] = 1", "pyc")
        assert result.oom_killed
        assert told(result)[0] == "SIGKILL"
        assert "--memory" in (result.hint or "")


# -- what is not there ------------------------------------------------------------------------------------------------


def test_missing_toolchain_is_a_setup_error_with_a_hint(server: Server, sandbox: Sandbox) -> None:
    with pytest.raises(ToolchainMissing, match="rust code needs rustc, and this sandbox has none") as caught:
        sandbox.code.run("fn main() {}", "rust")
    assert "apt-get install rustc" in (caught.value.hint or "")
    assert caught.value.details == {"language": "rust", "program": "rustc"}
    with pytest.raises(ToolchainMissing, match="java code needs javac"):
        list(sandbox.code.stream("class Main {}", "java"))
    with pytest.raises(ToolchainMissing, match="halves code needs no-such-program"):
        sandbox.code.run("", "halves")
    with pytest.raises(ToolchainMissing, match="/etc/passwd can't be executed in this sandbox"):
        sandbox.code.run("", "broken")
    with server.http() as http:
        answer = http.post(f"/v1/sandboxes/{sandbox.id}/code", json={"code": "", "language": "rust"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "toolchain_missing")


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_base_compiles_c_and_cpp(sandbox: Sandbox, language: str) -> None:
    assert sandbox.code.run(DOUBLES[language], language, stdin="21\n").stdout == "42\n"
    failed = sandbox.code.run(NOT_CODE[language], language)
    assert failed.error is not None
    assert failed.error.line == 2


def test_requested_version_must_be_installed(sandbox: Sandbox) -> None:
    assert sandbox.code.run("print(1)", "pyc@3").stdout == "1\n"
    with pytest.raises(InvalidRequest, match=r"this sandbox has pyc 3\S+, not 2") as caught:
        sandbox.code.run("print(1)", "pyc@2")
    assert caught.value.hint == "a sandbox of the image python:2 has that"
    with pytest.raises(ToolchainMissing, match="go code needs go"):
        sandbox.code.run("", "golang@1.24")


def test_leftovers_are_removed_by_the_next_run(server: Server) -> None:
    with Sandbox(server=server.address) as sandbox:
        sandbox.run("mkdir -p /tmp/skerry-code-0123456789abcdef/a /tmp/skerry-code-mine", check=True)
        sandbox.stop()
        assert sandbox.code.run(f"print `ls -d {PLACES} | wc -l`", "perl").stdout == "2\n"
        assert places(sandbox) == ["/tmp/skerry-code-mine"]


# -- the toolchains themselves ----------------------------------------------------------------------------------------

PACKAGES = (
    "gcc", "libc6-dev", "g++", "golang-go", "rustc", "default-jdk-headless", "ruby", "php-cli", "r-base-core",
)  # fmt: skip
DOUBLES = {  # reads a number, prints it doubled
    "c": '#include <stdio.h>\nint main(void) { int n; return scanf("%d", &n) == 1 ? !printf("%d\\n", 2 * n) : 1; }',
    "cpp": "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << 2 * n << std::endl; }",
    "go": 'package main\n\nimport "fmt"\n\nfunc main() { var n int; fmt.Scan(&n); fmt.Println(2 * n) }',
    "rust": 'fn main() { let mut s = String::new(); std::io::stdin().read_line(&mut s).unwrap();\n'
    'let n: i32 = s.trim().parse().unwrap(); println!("{}", 2 * n); }',
    "java": "public class Main { public static void main(String[] a) {\n"
    "System.out.println(2 * new java.util.Scanner(System.in).nextInt()); } }",
    "ruby": "puts 2 * gets.to_i",
    "php": '<?php echo 2 * intval(fgets(STDIN)), "\\n";',
    "r": 'cat(2 * as.integer(readLines("stdin", n = 1)), "\\n", sep = "")',
}  # fmt: skip
FAILS = {  # on its third line, saying boom
    "c": ("int main(void) {\n\n__builtin_trap(); }", "SIGILL", None),
    "cpp": ('#include <stdexcept>\nint main() {\nthrow std::runtime_error("boom"); }', "std::runtime_error", None),
    "go": ('package main\nfunc main() {\npanic("boom") }', "panic", 3),
    "rust": ('fn main() {\n\npanic!("boom"); }', "panicked", 3),
    "java": ('class Main { public static void main(String[] a) {\n\nthrow new IllegalStateException("boom"); } }',
             "java.lang.IllegalStateException", 3),
    "ruby": ('\n\nraise ArgumentError, "boom"', "ArgumentError", 3),
    "php": ('<?php\n\nthrow new Exception("boom");', "Fatal error", 3),
    "r": ('f <- function() {\n\nstop("boom") }\nf()', "Error", None),
}  # fmt: skip
NOT_CODE = {  # for compilers, wrong on the second line
    "c": "int main(void) {\nreturn x; }", "cpp": "int main() {\nreturn x; }", "go": "package main\nfunc main() { x }",
    "rust": "fn main() {\nx }", "java": "class Main {\nint x = y; }",
}  # fmt: skip
LOOPS = {
    "c": "int main(void) { for (;;); }", "cpp": "int main() { for (volatile int i = 0;; i = 0); }",
    "go": "package main\nfunc main() { for {} }", "rust": "fn main() { loop {} }",
    "java": "class Main { public static void main(String[] a) { for (;;); } }",
    "ruby": "loop {}", "php": "<?php for (;;);", "r": "repeat {}",
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_every_toolchain_handles_success_failure_error_and_timeout(server: Server) -> None:
    if not reaches("apt"):
        pytest.skip("this machine's own apt reaches no mirror")
    built = Image.base().apt(*PACKAGES).build(server=server.address)
    with Sandbox(image=built, server=server.address, limits=Limits(cpus=2)) as sandbox:
        found = {language.name: language for language in sandbox.code.languages()}
        for name, code in DOUBLES.items():
            result = sandbox.code.run(code, name, stdin="21\n")
            assert (result.stdout, result.exit_code, result.error) == ("42\n", 0, None), (name, result.stderr)
            assert result.version == found[name].version is not None
            wrong, kind, line = FAILS[name]
            result = sandbox.code.run(wrong, name)
            assert not result.ok, name
            assert (told(result)[0], told(result)[2]) == (kind, line), (name, result.stderr)
            assert name == "c" or "boom" in told(result)[1], (name, result.error)
            late = sandbox.code.run(LOOPS[name], name, timeout=8)
            assert (late.timed_out, told(late)[0]) == (True, "Interrupted"), (name, late.stderr)
            if name in NOT_CODE:
                error = sandbox.code.run(NOT_CODE[name], name).error
                assert error is not None, name
                assert (error.name, error.line) == ("CompileError", 2), (name, error.traceback)
        assert places(sandbox) == []
