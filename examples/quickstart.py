"""The quick start: one sandbox, a few commands in it, and nothing of it left. `make run` ends with this."""

import time

from skerry import Limits, Result, Sandbox


def show(sandbox: Sandbox, command: str) -> Result:
    result = sandbox.run(command)
    print(f"  $ {command}")
    for line in (result.stdout + result.stderr).splitlines():
        print(f"    {line}")
    return result


def main() -> None:
    begun = time.perf_counter()
    with Sandbox(limits=Limits(cpus=1, memory="512M"), env={"MODE": "test"}) as sandbox:
        result = sandbox.run("python3 -c 'print(6*7)'")
        assert result.stdout == "42\n" and result.ok
        print(f"{sandbox.id}: a machine of its own and its first answer in {time.perf_counter() - begun:.2f} s\n")

        sandbox.files.write("/workspace/a.txt", "hello\n")
        show(sandbox, "cat a.txt; echo MODE is $MODE; id")
        show(sandbox, "sudo id -un; python3 --version; node --version; git --version")
        for attempt in show(sandbox, "curl -sSf http://example.com/").denied:  # nothing gets out but what you name
            print(f"    refused: {attempt.why}; {attempt.hint} would allow it")
        wall = sandbox.isolation
    print(f"\ngone again, with all that was in it (the wall: {wall.runtime} {wall.runtime_version})")


if __name__ == "__main__":
    main()
