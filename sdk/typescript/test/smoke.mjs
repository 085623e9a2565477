// A short program for every platform: `node smoke.mjs ADDRESS [TOKEN]`, also with Bun and Deno. A browser calls `smoke`.

import { NotFound, Sandbox } from "../dist/index.js";

function check(condition, what) {
  if (!condition) throw new Error(`failed: ${what}`);
}

export async function smoke(server, token) {
  const sandbox = await Sandbox.create({ server: token ? { server, token } : { server } });
  try {
    const pieces = [];
    const result = await sandbox.run("echo out; exit 3", { onOutput: (piece) => pieces.push(piece.text) });
    check(result.exitCode === 3 && pieces.join("") === "out\n", "run");
    await sandbox.files.write("a.bin", new Uint8Array([0, 255, 7]));
    check([...(await sandbox.files.readBytes("a.bin"))].join() === "0,255,7", "files");
    const terminal = await (await sandbox.spawn(["sh"], { pty: true })).terminal();
    await terminal.send("echo $((6 * 7)); exit\n");
    let screen = "";
    for await (const part of terminal) screen += new TextDecoder().decode(part);
    check(screen.includes("42") && terminal.exit?.exitCode === 0, "terminal");
    check((await sandbox.code.run("6 * 7")).text === "42", "code");
    const stop = new AbortController();
    const running = sandbox.run("sleep 60", { signal: stop.signal, onStart: () => stop.abort(new Error("stopped")) });
    check((await running.catch((error) => error.message)) === "stopped", "abort");
  } finally {
    await sandbox.delete();
  }
  const gone = await sandbox.info().catch((error) => error);
  check(gone instanceof NotFound, "typed errors");
  return "passed";
}

const words = globalThis.process?.argv?.slice(2) ?? [];
if (words.length > 0) console.log(await smoke(...words));
