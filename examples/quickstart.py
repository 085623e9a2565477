"""Quick start: create a sandbox, run commands in it, delete it. `make run` runs this program last."""

import time

from skerry import Limits, Result, Sandbox


def show(sandbox: Sandbox, command: str) -> Result:
    """Run a command and print it with its output."""
    result = sandbox.run(command)
    print(f"  $ {command}")
    for line in (result.stdout + result.stderr).splitlines():
        print(f"    {line}")
    return result


def main() -> None:
    started = time.perf_counter()
    with Sandbox(limits=Limits(cpus=1, memory="512M"), env={"MODE": "test"}) as sandbox:
        result = sandbox.run("python3 -c 'print(6*7)'")
        assert result.stdout == "42\n" and result.ok
        print(f"{sandbox.id}: created, first command finished after {time.perf_counter() - started:.2f} s\n")

        sandbox.files.write("/workspace/a.txt", "hello\n")
        show(sandbox, "cat a.txt; echo MODE is $MODE; id")
        show(sandbox, "sudo id -un; python3 --version; node --version; git --version")
        for attempt in show(sandbox, "curl -sSf http://example.com/").denied:  # no rule allows this host
            print(f"    denied: {attempt.why}; allow it with {attempt.hint}")
        isolation = sandbox.isolation
    print(f"\n{sandbox.id}: deleted with all its files (runtime: {isolation.runtime} {isolation.runtime_version})")


if __name__ == "__main__":
    main()
