/** `sandbox.session(name)`: a shell that keeps its directory, variables and functions between commands. */

import type { CallOptions, Wire } from "./api.js";
import { type Process, runCommand, runRequest, type RunOptions, type SpawnOptions, startProcess } from "./processes.js";
import { checkResult, type Result } from "./results.js";
import type { Sandbox } from "./sandbox.js";

const ALL = "/v1/sandboxes/{ref}/sessions";
const ONE = "/v1/sandboxes/{ref}/sessions/{session}";

export interface SessionOptions extends CallOptions {
  user?: string;
  cwd?: string;
  env?: Record<string, string | null>;
  /** The default timeout of its commands in seconds. */
  timeout?: number | null;
}

export class Sessions {
  constructor(private readonly sandbox: Sandbox) {}

  /** Return the session of that name, or create it. The options apply to a new one. */
  async open(name: string, { signal, ...given }: SessionOptions = {}): Promise<Session> {
    const body = { name, ...given } as Wire<"SessionRequest">;
    return new Session(this.sandbox, await this.sandbox.api.json("post", ALL, { path: { ref: this.sandbox.id }, body, signal }));
  }

  async list(options: CallOptions = {}): Promise<Session[]> {
    const { sessions } = await this.sandbox.api.json("get", ALL, { path: { ref: this.sandbox.id }, ...options });
    return sessions.map((info) => new Session(this.sandbox, info));
  }

  async get(session: string, options: CallOptions = {}): Promise<Session> {
    return new Session(this.sandbox, await this.sandbox.api.json("get", ONE, { path: { ref: this.sandbox.id, session }, ...options }));
  }
}

export class Session {
  constructor(private readonly sandbox: Sandbox, private last: Wire<"SessionInfo">) {}

  get name(): string {
    return this.last.name;
  }
  /** The last known directory; `info()` requests it again. */
  get cwd(): string {
    return this.last.cwd;
  }
  get user(): string {
    return this.last.user;
  }
  /** The default timeout of its commands in seconds. */
  get timeout(): number | null {
    return this.last.timeout;
  }
  get cachedInfo(): Wire<"SessionInfo"> {
    return this.last;
  }

  async info(options: CallOptions = {}): Promise<Wire<"SessionInfo">> {
    this.last = await this.sandbox.api.json("get", ONE, { path: { ref: this.sandbox.id, session: this.name }, ...options });
    return this.last;
  }

  /** Run a command in the session, after its earlier ones. */
  async run(cmd: string, options: Omit<RunOptions, "user"> = {}): Promise<Result> {
    const timeout = options.timeout === undefined ? (this.last.timeout ?? 300) : options.timeout;
    const request = { ...runRequest(cmd, { ...options, timeout }), session: this.name };
    const result = await runCommand(this.sandbox, request, options);
    if (result.cwd !== null) this.last = { ...this.last, cwd: result.cwd };
    return result;
  }

  /** Return its exported variables. */
  async environment(options: CallOptions = {}): Promise<Record<string, string>> {
    const { stdout } = checkResult(await this.run("env -0", options));
    return Object.fromEntries(stdout.split("\0").filter(Boolean).map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));
  }

  /** Start a background command with the session's directory and variables. */
  async spawn(cmd: string, options: Omit<SpawnOptions, "user"> = {}): Promise<Process> {
    return startProcess(this.sandbox, cmd, options, this.name);
  }

  /** Delete the session and its state. */
  async close(options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("delete", ONE, { path: { ref: this.sandbox.id, session: this.name }, ...options });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
