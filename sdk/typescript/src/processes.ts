/** `sandbox.processes`, `sandbox.run` and `sandbox.spawn`. */

import { resumed, sleep, type CallOptions, type Wire } from "./api.js";
import { CommandFailed, CommandTimeout, Conflict, InvalidRequest, NotFound, ServerUnreachable } from "./errors.js";
import { fromWire } from "./names.js";
import { checkResult, type Command, encodeBase64, type Output, OutputCollector, OutputDecoder, type Result, resultOf, type RunEnd } from "./results.js";
import type { Sandbox } from "./sandbox.js";
import { Terminal } from "./terminal.js";
import type { Bytes, Source } from "./transport.js";

const ALL = "/v1/sandboxes/{ref}/processes";
const ONE = "/v1/sandboxes/{ref}/processes/{process}";
const POLL_S = 30;

export interface RunOptions extends CallOptions {
  /** Variables of this command; null unsets one. */
  env?: Record<string, string | null>;
  cwd?: string;
  user?: string;
  stdin?: string | Bytes;
  /** Seconds; null: no timeout. Default: 300. */
  timeout?: number | null;
  /** Raise CommandFailed or CommandTimeout instead of returning the result. */
  check?: boolean;
  onOutput?: (piece: Output) => void;
  onStart?: (run: RunningCommand) => void;
}

export interface SpawnOptions extends CallOptions {
  /** The process's ID; a conflict if it is taken. Default: generated. */
  id?: string;
  env?: Record<string, string | null>;
  cwd?: string;
  user?: string;
  /** A terminal, with its size. */
  pty?: boolean | { cols: number; rows: number };
  /** Its whole input. Default: an open pipe. */
  stdin?: string | Bytes | false;
  timeout?: number | null;
  /** How much of its output is kept, like "64M". */
  journal?: string | number;
  /** Remove it, with its output, some seconds after its end. */
  autoRemove?: boolean;
  onOutput?: (piece: Output) => void;
  onExit?: (result: Result) => void;
}

export interface RunningCommand {
  id: string;
  pid: number;
  signal(name: string): Promise<void>;
}

export function runRequest(cmd: Command | undefined, options: RunOptions): Wire<"RunRequest"> {
  const { env = {}, cwd, user, stdin, timeout = 300 } = options;
  return { cmd: cmd ?? null, env, cwd: cwd ?? null, user: user ?? null, timeout, ...inputOf(stdin) };
}

export function inputOf(stdin: string | Bytes | false | undefined): { stdin?: string; stdinBase64?: string; stdinStream?: boolean } {
  if (stdin === undefined || stdin === false) return {};
  return typeof stdin === "string" ? { stdin } : { stdinBase64: encodeBase64(stdin) };
}

/** Run a command to its end. Aborting kills it. */
export async function runCommand(sandbox: Sandbox, request: Wire<"RunRequest">, options: RunOptions): Promise<Result> {
  const { onOutput, onStart, check = false, signal } = options;
  const decoder = new OutputDecoder((value) => fromWire<RunEnd>(value) as RunEnd);
  const collector = new OutputCollector();
  const lines = sandbox.api.lines("post", ALL, { path: { ref: sandbox.id }, query: { wait: true }, body: request, signal });
  let announced = false;
  for await (const line of lines) {
    const piece = decoder.take(line);
    if (decoder.process !== null && !announced) {
      announced = true;
      const { id, pid } = decoder.process;
      onStart?.({ id, pid, signal: (name) => sandbox.processes.signal(id, name) });
    }
    if (piece === null) continue;
    onOutput?.(piece);
    collector.add(piece);
  }
  const result = collector.result(decoder.finished, request.cmd ?? null);
  return check ? checkResult(result) : result;
}

/** All commands of a sandbox. Ended ones stay until they are removed, or the sandbox is deleted. */
export class Processes {
  constructor(private readonly sandbox: Sandbox) {}

  async list(options: CallOptions = {}): Promise<Process[]> {
    const { processes } = await this.sandbox.api.json("get", ALL, { path: { ref: this.sandbox.id }, ...options });
    return processes.map((info) => new Process(this.sandbox, info));
  }

  async get(process: string, options: CallOptions = {}): Promise<Process> {
    const info = await this.sandbox.api.json("get", ONE, { path: { ref: this.sandbox.id, process }, ...options });
    return new Process(this.sandbox, info);
  }

  /** Send a signal. KILL ends the whole tree, also processes that left its session. */
  async signal(process: string, name = "TERM", options: CallOptions = {}): Promise<void> {
    const body = { signal: name.toUpperCase().replace(/^SIG/, "") };
    await this.sandbox.api.act("post", `${ONE}/signal`, { path: { ref: this.sandbox.id, process }, body, ...options });
  }

  /** Remove an ended process and its output. */
  async remove(process: string, options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("delete", ONE, { path: { ref: this.sandbox.id, process }, ...options });
  }

  /** Report tool calls of a coding agent that runs as this process: the review attributes changes of files to them. */
  async reportToolCalls(process: string, calls: Wire<"ReportedCall">[], options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${ONE}/tool-calls`, { path: { ref: this.sandbox.id, process }, body: { calls }, ...options });
  }

  /** Kill all running processes with their trees; return their number. */
  async killAll(options: CallOptions = {}): Promise<number> {
    const running = (await this.list(options)).filter((process) => process.state === "running");
    await Promise.all(running.map((process) => process.kill(options)));
    return running.length;
  }

  /** Remove all ended processes with their output; return their number. */
  async prune(options: CallOptions = {}): Promise<number> {
    const ended = (await this.list(options)).filter((process) => process.state === "exited");
    for (const process of ended) await ignoring(this.remove(process.id, options), NotFound);
    return ended.length;
  }
}

async function ignoring(call: Promise<void>, ...kinds: (new (message: string) => Error)[]): Promise<void> {
  try {
    await call;
  } catch (error) {
    if (!kinds.some((kind) => error instanceof kind)) throw error;
  }
}

/** A command that outlives the call that started it. Its output is kept from the first byte on. */
export class Process {
  /** Its standard input. Writing waits while the process does not read. */
  readonly stdin: { write(content: Source): Promise<void>; close(): Promise<void> };
  private last: Wire<"ProcessInfo">;

  constructor(private readonly sandbox: Sandbox, info: Wire<"ProcessInfo">) {
    this.last = info;
    const send = (source: Source, close: boolean): Promise<void> =>
      this.sandbox.api.act("post", `${ONE}/stdin`, { path: this.path, query: { close }, content: { source, type: "application/octet-stream" } });
    this.stdin = { write: (content) => send(content, false), close: () => send("", true) };
  }

  private get path(): { ref: string; process: string } {
    return { ref: this.sandbox.id, process: this.id };
  }

  get id(): string {
    return this.last.id;
  }
  /** The process ID inside the sandbox. */
  get pid(): number {
    return this.last.pid;
  }
  /** The last known state; `info()` requests it again. */
  get state(): "running" | "exited" {
    return this.last.state;
  }
  /** The last known state and end in one word. */
  get status(): Wire<"ProcessInfo">["status"] {
    return this.last.status;
  }
  get cachedInfo(): Wire<"ProcessInfo"> {
    return this.last;
  }

  async info(options: CallOptions = {}): Promise<Wire<"ProcessInfo">> {
    this.last = await this.sandbox.api.json("get", ONE, { path: this.path, ...options });
    return this.last;
  }

  /** Wait for its end. Raise CommandTimeout if it still runs after `timeout` seconds; it continues. */
  async wait({ timeout = null, signal }: CallOptions & { timeout?: number | null } = {}): Promise<Result> {
    const until = timeout === null ? Number.POSITIVE_INFINITY : Date.now() + timeout * 1000;
    for (let failures = 0; ; ) {
      const left = Math.max(0, Math.min(POLL_S, (until - Date.now()) / 1000));
      try {
        const end = await this.sandbox.api.jsonOrNull("get", `${ONE}/wait`, { path: this.path, query: { timeout: left }, signal });
        failures = 0;
        if (end !== null) return resultOf(end, this.last.cmd);
      } catch (error) {
        if (!(error instanceof ServerUnreachable) || ++failures > 20 || Date.now() >= until) throw error;
        await sleep(500, signal);
      }
      if (Date.now() >= until) throw new CommandTimeout(`process ${this.id} still runs after ${timeout} s`, { hint: "it continues; `process.kill()` ends it" });
    }
  }

  async signal(name: string, options: CallOptions = {}): Promise<void> {
    await this.sandbox.processes.signal(this.id, name, options);
  }

  /** Kill it with its whole tree. Ignore a process that has ended. */
  async kill(options: CallOptions = {}): Promise<void> {
    await ignoring(this.signal("KILL", options), Conflict, NotFound);
  }

  /** Set the size of its terminal. */
  async resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${ONE}/resize`, { path: this.path, body: { cols, rows }, ...options });
  }

  /** Open its terminal, to read and to type. `replay`: bytes of earlier output to start with. */
  async terminal({ replay, since, signal }: CallOptions & { replay?: number; since?: number } = {}): Promise<Terminal> {
    const query = { ...(replay !== undefined && since === undefined && { replay }), ...(since !== undefined && { since }) };
    return new Terminal(await this.sandbox.api.socket(`${ONE}/terminal`, { path: this.path, query, signal }));
  }

  /** Return its output from byte `since` on; a negative `since` counts from the end. Continue at `offset`. */
  async output({ since = 0, limit, signal }: CallOptions & { since?: number; limit?: number } = {}): Promise<{ text: string; pieces: Output[]; offset: number }> {
    const decoder = new OutputDecoder((value) => fromWire<RunEnd>(value) as RunEnd);
    decoder.offset = since;
    const pieces: Output[] = [];
    for await (const piece of this.read(decoder, { follow: false, limit, signal })) pieces.push(piece);
    return { text: pieces.map((piece) => piece.text).join(""), pieces, offset: decoder.offset };
  }

  /** Iterate over its output from byte `since` to its end. Reconnects without losing or repeating output. */
  async *follow({ since = 0, signal }: CallOptions & { since?: number } = {}): AsyncGenerator<Output> {
    const decoder = new OutputDecoder((value) => fromWire<RunEnd>(value) as RunEnd);
    decoder.offset = since;
    yield* resumed(() => this.read(decoder, { follow: true, signal }), signal);
  }

  /** Wait until its output matches. Raise CommandTimeout if it does not in time, CommandFailed if the process ends before. */
  async waitForOutput(pattern: RegExp | string, { timeout = 60, since = 0, signal }: CallOptions & { timeout?: number; since?: number } = {}): Promise<RegExpMatchArray> {
    const expression = typeof pattern === "string" ? new RegExp(pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")) : pattern;
    const late = AbortSignal.timeout(timeout * 1000);
    const both = signal === undefined ? late : AbortSignal.any([signal, late]);
    const decoder = new TextDecoder();
    let text = "";
    try {
      for await (const piece of this.follow({ since, signal: both })) {
        text = (text + decoder.decode(piece.data, { stream: true })).slice(-(1 << 20));
        const found = text.match(expression);
        if (found !== null) return found;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!late.aborted) throw error;
      throw new CommandTimeout(`the output of process ${this.id} did not match within ${timeout} s; it ends with:\n${text.slice(-500)}`);
    }
    throw new CommandFailed(`process ${this.id} ended before its output matched; it ends with:\n${text.slice(-500)}`);
  }

  private async *read(decoder: OutputDecoder, { follow, limit, signal }: CallOptions & { follow: boolean; limit?: number | undefined }): AsyncGenerator<Output> {
    const query = { since: decoder.offset, follow, ...(limit !== undefined && { limit }) };
    for await (const line of this.sandbox.api.lines("get", `${ONE}/output`, { path: this.path, query, signal })) {
      const piece = decoder.take(line);
      if (piece !== null) yield piece;
    }
    if (decoder.end === null && !decoder.paused) throw new ServerUnreachable("the output ended before the process did");
  }
}

/** Start a background command, with its callbacks. */
export async function startProcess(sandbox: Sandbox, cmd: Command | undefined, options: SpawnOptions, session?: string): Promise<Process> {
  const { id, env = {}, cwd, user, pty, stdin, timeout = null, journal, autoRemove = false, onOutput, onExit, signal } = options;
  if (pty && stdin !== undefined) throw new InvalidRequest("stdin: not with pty", { hint: "type into process.terminal()" });
  const body: Wire<"RunRequest"> = {
    cmd: cmd ?? null, id: id ?? null, env, cwd: cwd ?? null, user: user ?? null, timeout, autoRemove,
    pty: pty === true ? { cols: 80, rows: 24 } : pty || null,
    journal: journal ?? null, session: session ?? null,
    ...(stdin === undefined ? { stdinStream: true } : inputOf(stdin)),
  }; // prettier-ignore
  const info = await sandbox.api.json("post", ALL, { path: { ref: sandbox.id }, body, signal });
  const process = new Process(sandbox, info as Wire<"ProcessInfo">);
  if (onOutput !== undefined || onExit !== undefined) void notify(process, onOutput, onExit);
  return process;
}

async function notify(process: Process, onOutput: SpawnOptions["onOutput"], onExit: SpawnOptions["onExit"]): Promise<void> {
  try {
    if (onOutput !== undefined) for await (const piece of process.follow()) onOutput(piece);
    if (onExit !== undefined) onExit(await process.wait());
  } catch (error) {
    // The process or its sandbox was removed: there is nothing left to report.
    if (!(error instanceof NotFound || error instanceof ServerUnreachable || error instanceof Conflict)) throw error;
  }
}
