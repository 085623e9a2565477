// A program for the published JavaScript SDKs of E2B.
import { AuthenticationError, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } from "e2b";
import { Sandbox as Interpreter } from "@e2b/code-interpreter";

function check(condition, what) {
  if (!condition) {
    console.error(`failed: ${JSON.stringify(what)}`);
    process.exit(1);
  }
}

const sandbox = await Sandbox.create("base", { timeoutMs: 120_000, metadata: { a: "b" }, envs: { FOO: "bar" } });
try {
  const done = await sandbox.commands.run("echo hi; echo err >&2; echo $FOO; pwd");
  check(done.stdout === "hi\nbar\n/home/user\n" && done.stderr === "err\n", done);
  const failed = await sandbox.commands.run("exit 3").catch((error) => error);
  check(failed.exitCode === 3, failed);
  await sandbox.files.write("x/y.txt", "content");
  check((await sandbox.files.read("x/y.txt")) === "content", "read");
  check((await sandbox.files.list("x")).map((entry) => entry.name).join() === "y.txt", "list");
  const seen = new Promise((resolve) => sandbox.files.watchDir("x", (event) => event.name === "z" && resolve(event)));
  const writing = setInterval(() => sandbox.files.write("x/z", "1"), 500);
  await seen;
  clearInterval(writing);
  const shown = [];
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => shown.push(Buffer.from(data)) });
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("echo pty-$((40+2)); exit\n"));
  await terminal.wait().catch(() => undefined);
  check(Buffer.concat(shown).toString().includes("pty-42"), "terminal");
  const failures = [ // of streams, before their first message
    [NotFoundError, () => sandbox.commands.connect(999999)],
    [NotFoundError, () => sandbox.files.watchDir("/no", () => undefined)],
    [InvalidArgumentError, () => sandbox.commands.run("true", { cwd: "/no" })],
    [AuthenticationError, () => sandbox.commands.run("true", { user: "nobody-here" })],
  ];
  for (const [kind, call] of failures) {
    const error = await call().catch((reason) => reason);
    check(error instanceof kind, [kind.name, String(error)]);
  }
  check((await sandbox.getInfo()).metadata.a === "b", "metadata");
  await (sandbox.pause ?? sandbox.betaPause).call(sandbox);
  const again = await Sandbox.connect(sandbox.sandboxId);
  check((await again.commands.run("cat x/y.txt")).stdout === "content", "connect");
} finally {
  await sandbox.kill();
}
const late = await sandbox.commands.run("true").catch((reason) => reason);
check(late instanceof TimeoutError || late instanceof NotFoundError, String(late));
const interpreter = await Interpreter.create("base", { timeoutMs: 120_000 });
try {
  check((await interpreter.runCode("x = 6\nx * 7")).text === "42", "runCode");
} finally {
  await interpreter.kill();
}
console.log("passed");
