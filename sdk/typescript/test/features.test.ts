import { createServer } from "node:http";
import { describe, expect, it } from "vitest";
import { CommandFailed, CommandTimeout, NotFound, Sandbox, UnappliedChanges } from "../src/index.js";
import { tcp, unix } from "./server.js";

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of items) all.push(one);
  return all;
}

describe("processes", () => {
  it("run in the background, with callbacks and a chosen ID", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const ended = new Promise<number | null>((resolve) => {
      void sandbox.spawn("echo ready; sleep 0.1; exit 5", { id: "web", onExit: (result) => resolve(result.exitCode) });
    });
    expect(await ended).toBe(5);
    const process = await sandbox.processes.get("web");
    expect(process.status).toBe("failed");
    expect((await process.waitForOutput(/rea(dy)/))[1]).toBe("dy");
    await expect(process.waitForOutput("never")).rejects.toBeInstanceOf(CommandFailed);
    const sleeping = await sandbox.spawn("sleep 300");
    await expect(sleeping.wait({ timeout: 0.2 })).rejects.toBeInstanceOf(CommandTimeout);
    expect(await sandbox.processes.killAll()).toBe(1);
    expect((await sleeping.wait()).signal).toBe("KILL");
    expect(await sandbox.processes.prune()).toBe(2);
  });

  it("follow their output from any byte", async () => {
    await using sandbox = await Sandbox.create({ server: tcp });
    const process = await sandbox.spawn("for n in 1 2 3; do echo line $n; sleep 0.05; done");
    expect((await collect(process.follow())).map((piece) => piece.text).join("")).toBe("line 1\nline 2\nline 3\n");
    expect((await process.output({ since: -7 })).text).toBe("line 3\n");
  });

  it("keep a session's directory and variables", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const session = await sandbox.session("work", { env: { A: "1" } });
    await session.run("cd /tmp; B=2");
    expect((await session.run("pwd; echo $A$B")).stdout).toBe("/tmp\n12\n");
    expect(session.cwd).toBe("/tmp");
    expect((await sandbox.sessions.list()).map((one) => one.name)).toEqual(["work"]);
    await session.close();
    await expect(sandbox.sessions.get("work")).rejects.toBeInstanceOf(NotFound);
  });
});

describe("ports", () => {
  it("are waited for, exposed and forwarded", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    await sandbox.files.write("index.html", "from inside");
    const web = await sandbox.spawn("python3 -m http.server 8000");
    await sandbox.waitForPort(8000, { httpPath: "/", status: 200, process: web });
    const preview = await sandbox.expose(8000, { name: "web" });
    expect((await sandbox.previews.get("web")).url).toBe(preview.url);
    await preview.revoke();
    await expect(sandbox.previews.get(8000)).rejects.toBeInstanceOf(NotFound);
    await using forward = await sandbox.forward(8000);
    expect(await (await fetch(`http://127.0.0.1:${forward.port}/`)).text()).toBe("from inside");
    await expect(sandbox.waitForPort(9, { timeout: 0.3 })).rejects.toBeInstanceOf(CommandTimeout);
  });
});

describe("network", () => {
  it("has a policy, a log and approvals", async () => {
    await using sandbox = await Sandbox.create({ server: unix, network: { onUnknown: "ask" } });
    const asking = sandbox.run("curl -fsS -m 30 http://unknown.example/");
    for await (const request of sandbox.network.approvals()) {
      expect(request.host).toBe("unknown.example");
      await sandbox.network.answer(request.id, { allow: false });
      break;
    }
    const result = await asking;
    expect(result.ok).toBe(false);
    expect(result.denied[0]).toMatchObject({ host: "unknown.example", decision: "denied" });
    await sandbox.network.allow("*.test");
    expect((await sandbox.network.show()).network.allow).toEqual(["*.test"]);
    expect((await collect(sandbox.network.log())).map((one) => one.host)).toContain("unknown.example");
    expect((await sandbox.network.suggest()).allow).toContain("unknown.example:80");
  });
});

describe("storage", () => {
  it("snapshots, forks, rolls back and mounts volumes", async () => {
    const name = `ts-${process.pid}`;
    const volume = await unix.volumes.create(name);
    try {
      await using sandbox = await Sandbox.create({ server: unix, volumes: { "/data": name } });
      await sandbox.files.write("a.txt", "1");
      await sandbox.run("echo kept > /data/file");
      const snapshot = await sandbox.snapshot();
      await sandbox.run("rm a.txt; touch b.txt");
      expect((await snapshot.changes({ to: sandbox.id })).changes.map((one) => one.path).filter((path) => path.startsWith("/workspace/")).sort()).toEqual(["/workspace/a.txt", "/workspace/b.txt"]);
      await sandbox.rollback({ snapshot });
      expect(await sandbox.files.readText("a.txt")).toBe("1");
      const forks = await sandbox.fork(2);
      expect(await Promise.all(forks.map((fork) => fork.files.readText("a.txt")))).toEqual(["1", "1"]);
      await Promise.all(forks.map((fork) => fork.delete()));
      expect((await unix.snapshots.list()).map((one) => one.id)).toContain(snapshot.id);
      {
        await using other = await Sandbox.create({ server: unix, image: snapshot });
        expect(await other.files.readText("a.txt")).toBe("1");
      }
      await snapshot.delete();
    } finally {
      await volume.delete();
    }
    expect((await unix.images.list()).map((one) => one.name)).toContain("base");
  });
});

describe("lifecycle", () => {
  it("pauses, stops, resumes, renames and updates", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    await sandbox.pause();
    expect(sandbox.state).toBe("paused");
    await sandbox.resume();
    await sandbox.stop();
    expect((await sandbox.info()).state).toBe("stopped");
    await sandbox.update({ labels: { x: "y" }, env: { NEW_VALUE: "1" }, lifecycle: { idleTimeout: "5m" } });
    expect((await sandbox.run("echo $NEW_VALUE")).stdout).toBe("1\n"); // it starts again
    expect((await Sandbox.list({ server: unix, labels: { x: "y" } })).map((one) => one.id)).toEqual([sandbox.id]);
    expect((await sandbox.stats()).id).toBe(sandbox.id);
    expect((await sandbox.usage()).cpuS).toBeGreaterThan(0);
    const named = await Sandbox.getOrCreate(`ts-named-${process.pid}`, { server: unix });
    expect((await Sandbox.getOrCreate(named.name as string, { server: unix })).id).toBe(named.id);
    await named.delete();
  });
});

describe("review", () => {
  it("decides about hunks and protects accepted ones", async () => {
    const sandbox = await Sandbox.create({ server: unix });
    await sandbox.review.start();
    await sandbox.run("printf 'a\\nb\\n' > new.txt; echo x > other.txt");
    const changes = await sandbox.review.changes();
    expect(changes.files.map((file) => file.path)).toEqual(["new.txt", "other.txt"]);
    const [first, second] = changes.files.map((file) => file.hunks[0]);
    await sandbox.review.accept(first!);
    const [rejected] = await sandbox.review.reject(second!, { reason: "not needed" });
    expect(rejected).toMatchObject({ state: "rejected", reason: "not needed" });
    expect((await sandbox.review.origin(first!)).entries[0]!.command).toContain("new.txt");
    expect(await sandbox.review.diff()).toContain("+++ b/new.txt");
    expect((await sandbox.review.diffStat()).files).toHaveLength(2);
    expect((await sandbox.review.history()).entries.filter((one) => one.kind === "command")).toHaveLength(1);
    expect((await sandbox.review.accepted()).files.map((file) => file.path)).toEqual(["new.txt"]);
    await expect(sandbox.delete()).rejects.toBeInstanceOf(UnappliedChanges);
    await sandbox.delete({ force: true, purge: true });
  });

  it("is watched", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const { tip } = await sandbox.review.start();
    const running = sandbox.run("echo 1 > seen.txt");
    for await (const event of sandbox.review.watch({ since: tip })) if (event.type === "change") break;
    await running;
  });
});

describe("records", () => {
  it("have the trace, the audit log and usage", async () => {
    const sandbox = await Sandbox.create({ server: unix, labels: { task: "ts" } });
    await sandbox.run("echo traced");
    await sandbox.delete();
    const steps = await collect(sandbox.records.trace());
    expect(JSON.stringify(steps)).toContain("echo traced");
    const actions: string[] = [];
    for await (const record of unix.audit.list({ sandbox: sandbox.id })) actions.push(record.type);
    expect(actions).toContain("process.run");
    expect((await unix.audit.verify()).ok).toBe(true);
    expect((await unix.usage({ by: "label:task" })).rows.map((row) => row.key)).toContain("ts");
  });
});

describe("a server", () => {
  it("describes itself", async () => {
    expect((await unix.health()).ok).toBe(true);
    expect((await unix.info()).version).toMatch(/^\d/);
    expect((await unix.languages()).map((one) => one.name)).toContain("python");
    expect(await unix.metrics()).toContain("skerry_");
    expect((await unix.tokens.list()).length).toBeGreaterThan(0);
  });

  it("whose responses are not Skerry's gives a clear error", async () => {
    const other = createServer((_, response) => response.writeHead(502).end("<html>bad gateway"));
    await new Promise<void>((resolve) => other.listen(0, "127.0.0.1", resolve));
    const { port } = other.address() as { port: number };
    const { Client } = await import("../src/index.js");
    await expect(new Client({ server: `http://127.0.0.1:${port}` }).info()).rejects.toThrow("the server answered 502: <html>bad gateway");
    other.close();
  });
});
