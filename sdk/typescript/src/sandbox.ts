/** `Sandbox`: one isolated machine. */

import { type Api, type ApiOptions, type CallOptions, type Schemas, sleep, type Wire } from "./api.js";
import { Client } from "./client.js";
import { Code } from "./code.js";
import { CommandFailed, CommandTimeout, Conflict, NotFound, ServerUnreachable, UnappliedChanges } from "./errors.js";
import { Files } from "./files.js";
import { type Forward, forwardPort } from "./forward.js";
import { type Preview, Previews, SandboxNetwork } from "./network.js";
import { type Process, Processes, runCommand, runRequest, type RunOptions, type SpawnOptions, startProcess } from "./processes.js";
import type { Records } from "./records.js";
import { checkResult, type Command, type Result } from "./results.js";
import { SandboxReview } from "./review.js";
import { type Session, type SessionOptions, Sessions } from "./sessions.js";
import { Snapshot } from "./storage.js";

const ALL = "/v1/sandboxes";
const ONE = "/v1/sandboxes/{ref}";

export type SandboxInfo = Wire<"SandboxInfo">;
type Given<Name extends keyof Schemas> = Partial<Wire<Name>>;

export interface CreateOptions extends CallOptions {
  /** An image, or a snapshot. Default: base. */
  image?: string | Snapshot;
  /** A named sandbox is kept when `await using` ends, and stopped at the end of its lifetime. */
  name?: string;
  env?: Record<string, string | null>;
  labels?: Record<string, string>;
  limits?: Given<"Limits">;
  network?: Given<"Network">;
  secrets?: Wire<"SecretValue">[];
  /** Directories inside, each with a volume's name, like `{ "/data": "data:ro" }`. */
  volumes?: Record<string, string>;
  lifecycle?: Given<"Lifecycle">;
  budget?: Given<"Budget">;
  options?: Given<"Options">;
  /** The server: a client, or its options. */
  server?: Client | ApiOptions;
}

const clientOf = (server: Client | ApiOptions = {}): Client => (server instanceof Client ? server : new Client(server));

/**
 * An isolated Linux machine with its own files, processes and limits.
 *
 *     await using sandbox = await Sandbox.create({ limits: { memory: "512M" } });
 *     const result = await sandbox.run("python3 -c 'print(6*7)'");
 *
 * At the end of the block an unnamed sandbox is deleted and a named one is kept.
 */
export class Sandbox {
  readonly code = new Code(this);
  readonly files = new Files(this);
  readonly git = new Git(this);
  readonly network = new SandboxNetwork(this);
  readonly previews = new Previews(this);
  readonly processes = new Processes(this);
  readonly review = new SandboxReview(this);
  readonly sessions = new Sessions(this);

  private constructor(readonly client: Client, private last: SandboxInfo) {}

  get api(): Api {
    return this.client.api;
  }
  get id(): string {
    return this.last.id;
  }
  get name(): string | null {
    return this.last.name;
  }
  /** The last known state; `info()` requests it again. */
  get state(): SandboxInfo["state"] {
    return this.last.state;
  }
  /** Why it stopped or failed. */
  get reason(): string | null {
    return this.last.reason;
  }
  get isolation(): SandboxInfo["isolation"] {
    return this.last.isolation;
  }
  get labels(): Record<string, string> {
    return this.last.labels;
  }
  /** The last known information; `info()` requests it again. */
  get cachedInfo(): SandboxInfo {
    return this.last;
  }
  get records(): Records {
    return this.client.records(this.id);
  }

  // -- all sandboxes --------------------------------------------------------------------------------------------------

  static async create({ server, signal, image = "base", ...given }: CreateOptions = {}): Promise<Sandbox> {
    const client = clientOf(server);
    const body = { ...given, image: image instanceof Snapshot ? image.id : image } as Wire<"CreateRequest">;
    // The key names the same sandbox when the request is repeated.
    const headers = { "idempotency-key": crypto.randomUUID() };
    try {
      return new Sandbox(client, await client.api.json("post", ALL, { body, headers, signal }));
    } catch (error) {
      if (signal?.aborted) await new Sandbox(client, await client.api.json("post", ALL, { body, headers })).delete({ force: true, purge: true }).catch(() => undefined);
      throw error;
    }
  }

  /** Return an existing sandbox by ID or name. */
  static async get(ref: string, { server, signal }: CallOptions & { server?: Client | ApiOptions } = {}): Promise<Sandbox> {
    const client = clientOf(server);
    return new Sandbox(client, await client.api.json("get", ONE, { path: { ref }, signal }));
  }

  /** Return the sandbox of that name, or create it. An existing one is returned unchanged. */
  static async getOrCreate(name: string, options: Omit<CreateOptions, "name"> = {}): Promise<Sandbox> {
    const place = { server: clientOf(options.server), signal: options.signal };
    try {
      return await Sandbox.get(name, place);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
    try {
      return await Sandbox.create({ ...options, name, server: place.server });
    } catch (error) {
      if (!(error instanceof Conflict)) throw error; // created concurrently
      return Sandbox.get(name, place);
    }
  }

  /** Return your sandboxes with all these labels, in that state. */
  static async list({ labels = {}, state, server, signal }: CallOptions & { labels?: Record<string, string>; state?: SandboxInfo["state"]; server?: Client | ApiOptions } = {}): Promise<Sandbox[]> {
    const client = clientOf(server);
    const query = { label: Object.entries(labels).map(([key, value]) => `${key}=${value}`), ...(state && { state }) };
    const { sandboxes } = await client.api.json("get", ALL, { query, signal });
    return sandboxes.map((info) => new Sandbox(client, info));
  }

  /** Return your deleted sandboxes with a kept review, the last deleted first. */
  static async listDeleted({ server, signal }: CallOptions & { server?: Client | ApiOptions } = {}): Promise<Wire<"DeletedSandbox">[]> {
    return (await clientOf(server).api.json("get", "/v1/review/deleted", { signal })).sandboxes;
  }

  /** Create a sandbox like the deleted one, with its review and the kept files of its workspace. */
  static async undelete(ref: string, { name, server, signal }: CallOptions & { name?: string; server?: Client | ApiOptions } = {}): Promise<Sandbox> {
    const client = clientOf(server);
    const body = { name: name ?? null };
    return new Sandbox(client, await client.api.json("post", "/v1/review/deleted/{ref}", { path: { ref }, body, signal }));
  }

  // -- this sandbox ---------------------------------------------------------------------------------------------------

  async info(options: CallOptions = {}): Promise<SandboxInfo> {
    this.last = await this.api.json("get", ONE, { path: { ref: this.id }, ...options });
    return this.last;
  }

  /** Change the given fields of `limits`, `env` and `lifecycle`, and replace `labels`, `secrets` and `budget`. */
  async update({ signal, ...change }: CallOptions & Pick<CreateOptions, "limits" | "env" | "labels" | "lifecycle" | "secrets" | "budget">): Promise<void> {
    this.last = await this.api.json("patch", ONE, { path: { ref: this.id }, body: change as Wire<"UpdateRequest">, signal });
  }

  usage(options: CallOptions = {}): Promise<Wire<"Usage">> {
    return this.api.json("get", `${ONE}/usage`, { path: { ref: this.id }, ...options });
  }

  /** Return its current resource usage, with its limits. */
  async stats(options: CallOptions = {}): Promise<Wire<"SandboxStats">> {
    return (await this.client.stats([this.id], options))[0] as Wire<"SandboxStats">;
  }

  async rename(name: string, options: CallOptions = {}): Promise<void> {
    this.last = await this.api.json("post", `${ONE}/rename`, { path: { ref: this.id }, body: { name }, ...options });
  }

  /** Delete it. Accepted changes that were not applied raise UnappliedChanges, unless `force` is set. */
  async delete({ force = false, purge = false, signal }: CallOptions & { force?: boolean; purge?: boolean } = {}): Promise<void> {
    await this.api.act("delete", ONE, { path: { ref: this.id }, query: { force, purge }, signal });
  }

  /** End its processes and keep its files. The next call starts it again. */
  async stop(options: CallOptions = {}): Promise<void> {
    this.last = await this.api.json("post", `${ONE}/stop`, { path: { ref: this.id }, ...options });
  }
  async resume(options: CallOptions = {}): Promise<void> {
    this.last = await this.api.json("post", `${ONE}/resume`, { path: { ref: this.id }, ...options });
  }
  /** Freeze its processes. */
  async pause(options: CallOptions = {}): Promise<void> {
    this.last = await this.api.json("post", `${ONE}/pause`, { path: { ref: this.id }, ...options });
  }

  /** Take a snapshot of its files, or of one directory (`path`). `ttl`: remove it after this time, like "7d". */
  async snapshot({ name, path, ttl, signal }: CallOptions & { name?: string; path?: string; ttl?: string | number } = {}): Promise<Snapshot> {
    const body = { name: name ?? null, path: path ?? null, ttl: ttl ?? null } as Wire<"SnapshotRequest">;
    const headers = { "idempotency-key": crypto.randomUUID() };
    return new Snapshot(this.api, await this.api.json("post", `${ONE}/snapshots`, { path: { ref: this.id }, body, headers, signal }));
  }

  /** Return the snapshots that were taken of this sandbox. */
  async snapshots(options: CallOptions = {}): Promise<Snapshot[]> {
    const { snapshots } = await this.api.json("get", `${ONE}/snapshots`, { path: { ref: this.id }, ...options });
    return snapshots.map((info) => new Snapshot(this.api, info));
  }

  /** Restore its files from a snapshot, or from before the last `steps` commands. Its processes end. */
  async rollback({ snapshot, steps, signal }: CallOptions & { snapshot?: Snapshot | string; steps?: number }): Promise<void> {
    const body = { snapshot: snapshot instanceof Snapshot ? snapshot.id : (snapshot ?? null), steps: steps ?? null };
    this.last = await this.api.json("post", `${ONE}/rollback`, { path: { ref: this.id }, body, signal });
  }

  /** Add the files of a snapshot of a directory. */
  async restore(snapshot: Snapshot | string, { path, user, signal }: CallOptions & { path?: string; user?: string } = {}): Promise<Wire<"TransferResult">> {
    const query = { snapshot: typeof snapshot === "string" ? snapshot : snapshot.id, ...(path && { path }), ...(user && { user }) };
    return this.api.json("post", `${ONE}/restore`, { path: { ref: this.id }, query, signal });
  }

  /** Create sandboxes with the same current files, variables and settings: all of them, or none. */
  async fork(n = 1, { name, signal }: CallOptions & { name?: string } = {}): Promise<Sandbox[]> {
    const headers = { "idempotency-key": crypto.randomUUID() };
    const { sandboxes } = await this.api.json("post", `${ONE}/fork`, { path: { ref: this.id }, body: { n, name: name ?? null }, headers, signal });
    return sandboxes.map((info) => new Sandbox(this.client, info));
  }

  /** Run a command to its end: a string is a shell line, a list an argv. Aborting kills it. */
  async run(cmd?: Command, options: RunOptions = {}): Promise<Result> {
    return runCommand(this, runRequest(cmd, options), options);
  }

  /** Start a command in the background. */
  async spawn(cmd?: Command, options: SpawnOptions = {}): Promise<Process> {
    return startProcess(this, cmd, options);
  }

  /** Return the session of that name, or create it. */
  async session(name: string, options: SessionOptions = {}): Promise<Session> {
    return this.sessions.open(name, options);
  }

  /** Return a ticket with which a browser opens one terminal of this sandbox, within a minute. */
  terminalTicket(options: CallOptions = {}): Promise<Wire<"TerminalTicket">> {
    return this.api.json("post", `${ONE}/terminal-ticket`, { path: { ref: this.id }, ...options });
  }

  /** Wait until a process inside listens on a port and, with `httpPath`, answers there. */
  async waitForPort(
    port: number,
    { timeout = 30, httpPath, status, interval = 0.2, process, signal }: CallOptions & { timeout?: number; httpPath?: string; status?: number; interval?: number; process?: Process } = {},
  ): Promise<void> {
    const until = Date.now() + timeout * 1000;
    let last = "";
    do {
      const left = Math.max(0, Math.min(30, (until - Date.now()) / 1000));
      const query = { timeout: left, ...(httpPath && { httpPath }), ...(process && { process: process.id }) };
      try {
        const state = await this.api.json("get", `${ONE}/ports/{port}/wait`, { path: { ref: this.id, port: String(port) }, query, signal });
        if (state.open && (status === undefined || status === state.status)) return;
        if (state.ended && process !== undefined) {
          checkResult(await process.wait({ signal }));
          throw new CommandFailed(`process ${process.id} ended before port ${port} was open`);
        }
        last = state.open ? `status ${state.status}` : state.last;
        if (state.open) await sleep(interval * 1000, signal);
      } catch (error) {
        if (!(error instanceof ServerUnreachable)) throw error;
        await sleep(500, signal);
      }
    } while (Date.now() < until);
    throw new CommandTimeout(`nothing listens on port ${port} after ${timeout} s${last && `: ${last}`}`);
  }

  /** Give a port inside a URL, for holders of its token, or for everyone (`public`). */
  async expose(port: number, options: Parameters<Previews["expose"]>[1] = {}): Promise<Preview> {
    return this.previews.expose(port, options);
  }

  /** Forward a port of this machine to one inside (Node.js). */
  async forward(remote: number, options: { local?: number; host?: string } = {}): Promise<Forward> {
    return forwardPort(this, remote, options);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.name !== null) return;
    try {
      await this.delete();
    } catch (error) {
      if (error instanceof UnappliedChanges) await this.delete({ force: true });
      else if (!(error instanceof NotFound)) throw error;
    }
  }
}

/** `sandbox.git`. For the rest of git use `sandbox.run("git …")`. */
export class Git {
  constructor(private readonly sandbox: Sandbox) {}

  /** Clone a repository inside; return the absolute path of its working tree. */
  async clone(url: string, { path, depth, branch, user, timeout = 300, signal }: CallOptions & { path?: string; depth?: number; branch?: string; user?: string; timeout?: number } = {}): Promise<string> {
    const target = path ?? (url.replace(/\/+$/, "").replace(/\.git$/, "").split(/[/:]/).pop() as string);
    const words = ["git", "clone", "--quiet", ...(depth ? ["--depth", String(depth)] : []), ...(branch ? ["--branch", branch] : []), "--", url, target];
    const options = { timeout, check: true, ...(user && { user }), ...(signal && { signal }) };
    await this.sandbox.run(words, { ...options, env: { GIT_TERMINAL_PROMPT: "0" } });
    const place = await this.sandbox.run(["git", "-C", target, "rev-parse", "--show-toplevel"], options);
    return place.stdout.trimEnd();
  }
}
