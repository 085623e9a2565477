import { describe, expect, it } from "vitest";
import { Client, CommandFailed, CommandTimeout, Conflict, FileNotFound, InvalidRequest, NotFound, OutOfMemory, PermissionDenied, Sandbox, ServerUnreachable } from "../src/index.js";
import { tcp, unix } from "./server.js";

describe.each([["a unix socket", unix], ["TCP with a token", tcp]])("a sandbox over %s", (_, server) => {
  it("is created, runs commands, and is deleted at the end of the block", async () => {
    let id: string;
    {
      await using sandbox = await Sandbox.create({ server, env: { MODE: "test" }, labels: { a_b: "c_d" }, limits: { memory: "512M" } });
      id = sandbox.id;
      const result = await sandbox.run("echo out; echo err >&2; echo $MODE; exit 3", { env: { EXTRA_ONE: "1" } });
      expect(result).toMatchObject({ ok: false, exitCode: 3, stdout: "out\ntest\n", stderr: "err\n", timedOut: false });
      expect(result.usage.cpuS).toBeGreaterThanOrEqual(0);
      expect(sandbox.labels).toEqual({ a_b: "c_d" }); // keys of callers keep their form
      expect(sandbox.cachedInfo.limits.memory).toBe("512M");
      expect((await sandbox.run(["printf", "%s", "a b"])).stdout).toBe("a b");
    }
    await expect(Sandbox.get(id, { server })).rejects.toBeInstanceOf(NotFound);
  });

  it("streams output while the command runs, and passes bytes unchanged", async () => {
    await using sandbox = await Sandbox.create({ server });
    const pieces: string[] = [];
    const result = await sandbox.run("printf 'a\\303'; sleep 0.1; printf '\\251b'; printf '\\377\\376' >&2", { onOutput: (piece) => pieces.push(piece.stream) });
    expect(result.stdout).toBe("aéb");
    expect([...result.stderrBytes]).toEqual([0xff, 0xfe]);
    expect(pieces).toContain("stderr");
    const long = await sandbox.run("head -c 3000000 /dev/zero | tr '\\0' x");
    expect(long.truncated).toBe(true);
    expect(long.stdout.length).toBeLessThan(3_000_000);
  });

  it("gives programs their input, in one piece and as a stream", async () => {
    await using sandbox = await Sandbox.create({ server });
    expect((await sandbox.run("cat", { stdin: new Uint8Array([1, 2, 255]) })).stdoutBytes).toEqual(new Uint8Array([1, 2, 255]));
    const process = await sandbox.spawn("cat; echo end");
    await process.stdin.write("first ");
    await process.stdin.write((async function* () {
      yield new TextEncoder().encode("second");
    })());
    await process.stdin.close();
    expect((await process.wait()).stdout).toBe("first secondend\n");
    expect((await process.output()).text).toBe("first secondend\n");
  });

  it("keeps files in both directions", async () => {
    await using sandbox = await Sandbox.create({ server });
    await sandbox.files.write("notes/a b.txt", "hëllo", { parents: true, mode: "600" });
    expect(await sandbox.files.readText("notes/a b.txt")).toBe("hëllo");
    expect(await sandbox.files.readBytes("notes/a b.txt", { offset: 1, length: 2 })).toEqual(new TextEncoder().encode("ë"));
    await sandbox.files.append("notes/a b.txt", "!\nline 2\n");
    expect((await sandbox.files.readLines("notes/a b.txt", { start: 2 })).lines).toEqual(["line 2"]);
    expect((await sandbox.files.stat("notes/a b.txt")).mode & 0o777).toBe(0o600);
    const big = new Uint8Array(3 << 20).fill(7);
    await sandbox.files.write("big", (async function* () {
      for (let at = 0; at < big.length; at += 1 << 18) yield big.subarray(at, at + (1 << 18));
    })());
    let size = 0;
    for await (const part of sandbox.files.stream("big")) size += part.length;
    expect(size).toBe(big.length);
    expect((await sandbox.files.search("l.ne")).matches[0]).toMatchObject({ line: 2 });
    await sandbox.files.replace("notes/a b.txt", "line 2", "line two");
    await sandbox.files.copy("notes", "copied", { recursive: true });
    await sandbox.files.move("copied/a b.txt", "copied/c.txt");
    expect((await sandbox.files.glob("**/*.txt")).entries.map((one) => one.name).sort()).toEqual(["a b.txt", "c.txt"]);
    const tar: Uint8Array[] = [];
    for await (const part of sandbox.files.downloadTar("notes")) tar.push(part);
    await sandbox.files.uploadTar("unpacked", new Blob(tar as BlobPart[]).stream());
    expect(await sandbox.files.exists("unpacked/a b.txt")).toBe(true);
    await sandbox.files.remove("notes", { recursive: true });
    await expect(sandbox.files.readText("notes/a b.txt")).rejects.toBeInstanceOf(FileNotFound);
    expect(await sandbox.files.exists("notes")).toBe(false);
  });

  it("reports changes of files", async () => {
    await using sandbox = await Sandbox.create({ server });
    const watch = sandbox.files.watch("/workspace", { exclude: ["*.tmp"] });
    await watch.ready;
    await sandbox.run("echo 1 > a.txt; echo 2 > b.tmp");
    for await (const event of watch) {
      expect(event).toMatchObject({ type: "created", path: "/workspace/a.txt" });
      break;
    }
    await sandbox.run("rm a.txt");
    for await (const event of sandbox.files.watch("/workspace", { exclude: ["*.tmp"], since: watch.token as string })) {
      if (event.type === "removed") break;
    }
  });

  it("runs a terminal", async () => {
    await using sandbox = await Sandbox.create({ server });
    const process = await sandbox.spawn(["sh"], { pty: { cols: 91, rows: 33 }, env: { PS1: "> " } });
    using terminal = await process.terminal();
    await terminal.send("stty size; exit 4\n");
    let screen = "";
    for await (const part of terminal) screen += new TextDecoder().decode(part);
    expect(screen).toContain("33 91");
    expect(terminal.exit).toMatchObject({ exitCode: 4 });
  });

  it("runs code and returns values", async () => {
    await using sandbox = await Sandbox.create({ server });
    expect((await sandbox.code.run("x = 6\nx * 7")).text).toBe("42");
    const context = await sandbox.code.context("python");
    const events: string[] = [];
    for await (const event of context.stream("print('hi'); {'a_b': 1}")) events.push(event.type);
    expect(events).toEqual(["started", "stdout", "result", "end"]);
    const failed = await sandbox.code.run("1/0");
    expect(failed).toMatchObject({ ok: false, error: { name: "ZeroDivisionError" } });
    await expect(sandbox.code.run("1/0", { check: true })).rejects.toBeInstanceOf(CommandFailed);
    expect((await sandbox.code.languages()).map((one) => one.name)).toContain("python");
    await context.delete();
  });
});

describe("errors", () => {
  it("have a class for each code", async () => {
    await using sandbox = await Sandbox.create({ server: unix, limits: { memory: "64M" } });
    await expect(sandbox.run("exit 7", { check: true })).rejects.toMatchObject({ code: "command_failed", result: { exitCode: 7 } });
    await expect(sandbox.run("sleep 60", { timeout: 0.3, check: true })).rejects.toBeInstanceOf(CommandTimeout);
    await expect(sandbox.run("tail /dev/zero", { check: true })).rejects.toBeInstanceOf(OutOfMemory);
    await expect(sandbox.processes.get("p-none")).rejects.toBeInstanceOf(NotFound);
    await expect(Sandbox.create({ server: unix, limits: { memory: "many" } })).rejects.toBeInstanceOf(InvalidRequest);
    await expect(unix.tokens.remove("../tokens")).rejects.toBeInstanceOf(NotFound);
    await expect(new Client({ server: "unix:///nonexistent.sock" }).info()).rejects.toBeInstanceOf(ServerUnreachable);
    await expect(new Client({ server: "http://127.0.0.1:1" }).info()).rejects.toBeInstanceOf(ServerUnreachable);
    await expect(new Client({ server: process.env.SKERRY_TEST_URL as string, token: "skt_wrong" }).info()).rejects.toBeInstanceOf(PermissionDenied);
    await expect(new Client({ server: "ftp://host" }).info()).rejects.toBeInstanceOf(InvalidRequest);
  });

  it("of a WebSocket name the reason", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const process = await sandbox.spawn("sleep 60");
    await expect(process.terminal()).rejects.toBeInstanceOf(Conflict);
  });
});

describe("an AbortSignal", () => {
  it("kills the command", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const stop = new AbortController();
    const running = sandbox.run("sleep 300", { signal: stop.signal, onStart: () => stop.abort(new Error("enough")) });
    await expect(running).rejects.toThrow("enough");
    await expect.poll(async () => (await sandbox.processes.list()).filter((one) => one.state === "running").length).toBe(0);
  });

  it("ends a stream", async () => {
    const stop = new AbortController();
    const reading = expect(async () => {
      for await (const _ of unix.events({ follow: true, signal: stop.signal })) stop.abort(new Error("seen"));
    }).rejects.toThrow("seen");
    await using sandbox = await Sandbox.create({ server: unix });
    expect(sandbox.state).toBe("running");
    await reading;
  });
});
