/** Results of commands. */

import type { Wire } from "./api.js";
import { CommandFailed, CommandTimeout, NetworkDenied, OutOfMemory, SandboxUnavailable } from "./errors.js";
import { type Bytes, joinBytes } from "./transport.js";

export type Command = string | string[];
export type RunEnd = Wire<"RunResult">;

/** A piece of output in the order in which it was written. `missing`: bytes that were dropped before it. */
export interface Output {
  stream: "stdout" | "stderr";
  data: Bytes;
  text: string;
  missing: number;
}

/** The end of a command. A non-zero exit code and a timeout are results, not errors, unless `check` is set. */
export type Result = Omit<RunEnd, "stdout" | "stderr" | "stdoutBase64" | "stderrBase64"> & {
  command: Command | null;
  ok: boolean;
  stdout: string;
  stderr: string;
  stdoutBytes: Bytes;
  stderrBytes: Bytes;
};

export function encodeBase64(bytes: Bytes): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}

export function decodeBase64(text: string): Bytes {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

const textOf = (bytes: Bytes): string => new TextDecoder().decode(bytes);
const bytesOf = (text: string, base64: string | null): Bytes => (base64 === null ? new TextEncoder().encode(text) : decodeBase64(base64));

export function resultOf(end: RunEnd, command: Command | null): Result {
  const { stdout, stderr, stdoutBase64, stderrBase64, ...rest } = end;
  const [stdoutBytes, stderrBytes] = [bytesOf(stdout, stdoutBase64), bytesOf(stderr, stderrBase64)];
  const ok = end.exitCode === 0 && !end.timedOut;
  return { ...rest, command, ok, stdout: textOf(stdoutBytes), stderr: textOf(stderrBytes), stdoutBytes, stderrBytes };
}

const MAX_KEPT = 1 << 20; // bytes of each stream in a result

/** The first and the last bytes of a stream. */
class HeadAndTail {
  private readonly head: Bytes[] = [];
  private headSize = 0;
  private tail: Bytes[] = [];
  private tailSize = 0;
  private size = 0;

  add(data: Bytes): void {
    this.size += data.length;
    const part = data.subarray(0, MAX_KEPT / 2 - this.headSize);
    if (part.length > 0) {
      this.head.push(part.slice());
      this.headSize += part.length;
    }
    const rest = data.subarray(part.length);
    if (rest.length === 0) return;
    this.tail.push(rest.slice());
    this.tailSize += rest.length;
    if (this.tailSize <= MAX_KEPT && this.tail.length < 1000) return;
    this.tail = [this.end()];
    this.tailSize = this.tail[0]!.length;
  }

  get omitted(): number {
    return Math.max(0, this.size - MAX_KEPT);
  }

  value(): Bytes {
    const mark = this.omitted > 0 ? `\n[skerry: ${this.omitted} bytes left out here]\n` : "";
    return joinBytes([...this.head, new TextEncoder().encode(mark), this.end()]);
  }

  private end(): Bytes {
    return joinBytes(this.tail).slice(-MAX_KEPT / 2);
  }
}

/** Collects the output of a stream for its result. */
export class OutputCollector {
  private readonly streams = { stdout: new HeadAndTail(), stderr: new HeadAndTail() };

  add(piece: Output): void {
    this.streams[piece.stream].add(piece.data);
  }

  result(end: RunEnd, command: Command | null): Result {
    const { stdout, stderr } = this.streams;
    const [stdoutBytes, stderrBytes] = [stdout.value(), stderr.value()];
    const truncated = end.truncated || stdout.omitted > 0 || stderr.omitted > 0;
    return { ...resultOf(end, command), stdoutBytes, stderrBytes, truncated, stdout: textOf(stdoutBytes), stderr: textOf(stderrBytes) };
  }
}

/** Raise the error of a failed command. */
export function checkResult(result: Result): Result {
  if (result.ok) return result;
  const command = Array.isArray(result.command) ? result.command.join(" ") : (result.command ?? "the command");
  const hint = result.hint;
  let error: CommandFailed | CommandTimeout;
  if (result.timedOut) error = new CommandTimeout(`${command}: timed out after ${result.durationS.toFixed(1)} s`, { hint });
  else if (result.oomKilled) error = new OutOfMemory(`${command}: out of memory`, { hint });
  else {
    const end = result.exitCode === null ? `ended by ${result.signal ?? "an unknown signal"}` : `exit code ${result.exitCode}`;
    const tail = result.stderr.trim().split("\n").slice(-5).join("\n");
    error = new (result.denied.length > 0 ? NetworkDenied : CommandFailed)(`${command}: ${end}${tail && `\n${tail}`}`, { hint });
  }
  error.result = result;
  throw error;
}

/** Read the lines of a command's stream: pieces of output, then its end. */
export class OutputDecoder {
  process: { id: string; pid: number } | null = null;
  offset = 0;
  end: RunEnd | null = null;
  paused = false;
  private missing = 0;

  constructor(private readonly toEnd: (value: unknown) => RunEnd) {}

  take(line: Record<string, unknown>): Output | null {
    for (const stream of ["stdout", "stderr"] as const) {
      const text = line[stream];
      const base64 = line[`${stream}_base64`];
      if (typeof text === "string") return this.piece(stream, new TextEncoder().encode(text));
      if (typeof base64 === "string") return this.piece(stream, decodeBase64(base64));
    }
    if (typeof line.missing === "number") {
      this.missing += line.missing;
      this.offset += line.missing;
    }
    const started = line.started as { id: string; pid: number; offset: number } | undefined;
    if (started !== undefined) [this.process, this.offset] = [started, started.offset];
    const pause = line.pause as { offset: number } | undefined;
    if (pause !== undefined) [this.offset, this.paused] = [pause.offset, true];
    if (line.exit !== undefined) this.end = this.toEnd(line.exit);
    return null;
  }

  get finished(): RunEnd {
    if (this.end === null) throw new SandboxUnavailable("the command's stream ended before the command did");
    return this.end;
  }

  private piece(stream: "stdout" | "stderr", data: Bytes): Output {
    this.offset += data.length;
    const missing = this.missing;
    this.missing = 0;
    return { stream, data, text: textOf(data), missing };
  }
}
