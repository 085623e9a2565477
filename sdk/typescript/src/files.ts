/** `sandbox.files`. A relative path is below the image's working directory. */

import { resumed, type CallOptions, type Wire } from "./api.js";
import { FileNotFound, ServerUnreachable } from "./errors.js";
import { fromWire } from "./names.js";
import type { Sandbox } from "./sandbox.js";
import { type Bytes, readBytes, type Source } from "./transport.js";

const FILES = "/v1/sandboxes/{ref}/files";
const BYTES = "application/octet-stream";

export interface AsUser extends CallOptions {
  /** The user inside that reads or writes. */
  user?: string;
}
export interface WriteOptions extends AsUser {
  /** Like "600". */
  mode?: string;
  /** Like "user:group". */
  owner?: string;
  /** Create missing directories above. */
  parents?: boolean;
}
export interface WatchOptions extends AsUser {
  recursive?: boolean;
  include?: string[];
  exclude?: string[];
  /** A token of an earlier event: continue after it. */
  since?: string;
}
export type FileEvent = Wire<"FileEvent">;
export type FileInfo = Wire<"FileInfo">;

/** Splits the call's own options from the query. */
function split<T extends CallOptions>(options: T): { query: Omit<T, "signal">; signal: AbortSignal | undefined } {
  const { signal, ...query } = options;
  return { query, signal };
}

export class Files {
  constructor(private readonly sandbox: Sandbox) {}

  private get path(): { ref: string } {
    return { ref: this.sandbox.id };
  }

  async readBytes(path: string, { offset, length, ...options }: AsUser & { offset?: number; length?: number } = {}): Promise<Bytes> {
    if (length === 0) return new Uint8Array();
    const { query, signal } = split(options);
    const end = length === undefined ? "" : String((offset ?? 0) + length - 1);
    const headers = offset === undefined && length === undefined ? {} : { range: `bytes=${offset ?? 0}-${end}` };
    const response = await this.sandbox.api.send("get", FILES, { path: this.path, query: { path, ...query }, headers, signal }, BYTES);
    return readBytes(response.body);
  }

  /** Read UTF-8 text; invalid bytes raise a TypeError. */
  async readText(path: string, options: AsUser = {}): Promise<string> {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await this.readBytes(path, options));
  }

  /** Read lines by their numbers, which start at 1. */
  async readLines(path: string, options: AsUser & { start?: number; end?: number } = {}): Promise<Wire<"FileLines">> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("get", `${FILES}/lines`, { path: this.path, query: { path, ...query }, signal });
  }

  /** Yield a file's bytes in pieces. */
  stream(path: string, options: AsUser = {}): AsyncGenerator<Bytes> {
    const { query, signal } = split(options);
    return this.sandbox.api.bytes("get", FILES, { path: this.path, query: { path, ...query }, signal });
  }

  /** Write a file atomically. */
  async write(path: string, content: Source, options: WriteOptions = {}): Promise<FileInfo> {
    return this.put(path, content, options, false);
  }

  async append(path: string, content: Source, options: WriteOptions = {}): Promise<FileInfo> {
    return this.put(path, content, options, true);
  }

  private put(path: string, source: Source, options: WriteOptions, append: boolean): Promise<FileInfo> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("put", FILES, { path: this.path, query: { path, append, ...query }, content: { source, type: BYTES }, signal });
  }

  async list(path = ".", options: AsUser & { depth?: number; hidden?: boolean } = {}): Promise<Wire<"Entries">> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("get", `${FILES}/list`, { path: this.path, query: { path, ...query }, signal });
  }

  async stat(path: string, options: AsUser & { follow?: boolean } = {}): Promise<FileInfo> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("get", `${FILES}/stat`, { path: this.path, query: { path, ...query }, signal });
  }

  async exists(path: string, options: AsUser = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (error instanceof FileNotFound) return false;
      throw error;
    }
  }

  async mkdir(path: string, options: AsUser & { mode?: string; parents?: boolean } = {}): Promise<FileInfo> {
    const { query, signal } = split({ parents: true, ...options });
    return this.sandbox.api.json("post", `${FILES}/mkdir`, { path: this.path, query: { path, ...query }, signal });
  }

  async remove(path: string, options: AsUser & { recursive?: boolean } = {}): Promise<void> {
    const { query, signal } = split(options);
    await this.sandbox.api.act("delete", FILES, { path: this.path, query: { path, ...query }, signal });
  }

  async move(path: string, to: string, options: AsUser & { overwrite?: boolean; parents?: boolean } = {}): Promise<FileInfo> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("post", `${FILES}/move`, { path: this.path, query: { path, to, ...query }, signal });
  }

  async copy(path: string, to: string, options: AsUser & { overwrite?: boolean; parents?: boolean; recursive?: boolean } = {}): Promise<FileInfo> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("post", `${FILES}/copy`, { path: this.path, query: { path, to, ...query }, signal });
  }

  async chmod(path: string, mode: string, options: AsUser & { recursive?: boolean } = {}): Promise<void> {
    const { query, signal } = split(options);
    await this.sandbox.api.act("post", `${FILES}/chmod`, { path: this.path, query: { path, mode, ...query }, signal });
  }

  async chown(path: string, owner: string, options: AsUser & { recursive?: boolean } = {}): Promise<void> {
    const { query, signal } = split(options);
    await this.sandbox.api.act("post", `${FILES}/chown`, { path: this.path, query: { path, owner, ...query }, signal });
  }

  /** Create a link at `path` to `target`. */
  async link(path: string, target: string, options: AsUser & { hard?: boolean } = {}): Promise<FileInfo> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("post", `${FILES}/link`, { path: this.path, query: { path, target, ...query }, signal });
  }

  async checksum(path: string, options: AsUser & { algorithm?: "md5" | "sha1" | "sha256" | "sha512" } = {}): Promise<string> {
    const { query, signal } = split(options);
    const found = await this.sandbox.api.json("get", `${FILES}/checksum`, { path: this.path, query: { path, ...query }, signal });
    return found.checksum;
  }

  /** Find files by a name pattern like `src/*.ts`. */
  async glob(pattern: string, options: AsUser & { path?: string; hidden?: boolean; limit?: number } = {}): Promise<Wire<"Entries">> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("get", `${FILES}/glob`, { path: this.path, query: { pattern, ...query }, signal });
  }

  /** Search file contents for a regular expression. */
  async search(
    pattern: string,
    options: AsUser & { path?: string; glob?: string; context?: number; limit?: number; ignoreCase?: boolean; literal?: boolean; hidden?: boolean } = {},
  ): Promise<Wire<"SearchResult">> {
    const { query, signal } = split(options);
    return this.sandbox.api.json("get", `${FILES}/search`, { path: this.path, query: { pattern, ...query }, signal });
  }

  /** Replace an exact text. It must occur once, unless `count` is given. */
  async replace(path: string, old: string, replacement: string, { count, ...options }: AsUser & { count?: number } = {}): Promise<Wire<"ReplaceResult">> {
    const { query, signal } = split(options);
    const body = { old, new: replacement, ...(count !== undefined && { count }) } as Wire<"ReplaceRequest">;
    return this.sandbox.api.json("post", `${FILES}/replace`, { path: this.path, query: { path, ...query }, body, signal });
  }

  /** Apply a unified diff below `path`: all of it, or nothing. */
  async patch(diff: string, { path = ".", ...options }: AsUser & { path?: string } = {}): Promise<Wire<"PatchResult">> {
    const { query, signal } = split(options);
    const content = { source: diff, type: "text/x-diff" };
    return this.sandbox.api.json("post", `${FILES}/patch`, { path: this.path, query: { path, ...query }, content, signal });
  }

  /** Yield a directory as a tar archive. Unpack it with care: its content comes from the sandbox. */
  downloadTar(path: string, options: AsUser & { exclude?: string[] } = {}): AsyncGenerator<Bytes> {
    const { query, signal } = split(options);
    return this.sandbox.api.bytes("get", `${FILES}/tree`, { path: this.path, query: { path, ...query }, signal }, "application/x-tar");
  }

  /** Unpack a tar archive below `path`. */
  async uploadTar(path: string, archive: Source, options: AsUser = {}): Promise<Wire<"TransferResult">> {
    const { query, signal } = split(options);
    const content = { source: archive, type: "application/x-tar" };
    return this.sandbox.api.json("put", `${FILES}/tree`, { path: this.path, query: { path, ...query }, content, signal });
  }

  /** Iterate over the changes below a directory. It reconnects and continues at its last event. */
  watch(path = ".", { since, signal, ...query }: WatchOptions = {}): Watch {
    return new Watch(this.sandbox, { path, ...query }, since, signal);
  }
}

/** The changes below a directory. `ready` resolves once it is established; `token` continues it later (`since`). */
export class Watch implements AsyncIterable<FileEvent> {
  token: string | undefined;
  readonly ready: Promise<void>;
  private readonly events: AsyncGenerator<FileEvent>;
  private readonly stop = new AbortController();
  private first: Promise<IteratorResult<FileEvent>> | null = null;
  private established!: () => void;
  private failed!: (reason: unknown) => void;

  constructor(sandbox: Sandbox, query: { path: string; recursive?: boolean; include?: string[]; exclude?: string[]; user?: string }, since: string | undefined, signal: AbortSignal | undefined) {
    this.token = since;
    this.ready = new Promise((resolve, reject) => {
      this.established = resolve;
      this.failed = reject;
    });
    this.ready.catch(() => undefined); // reported by the iteration, too
    const both = signal === undefined ? this.stop.signal : AbortSignal.any([signal, this.stop.signal]);
    this.events = resumed(() => this.once(sandbox, query, both), both);
    this.first = this.events.next(); // the watch begins now, not with the first event
    this.first.catch(this.failed);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileEvent> {
    try {
      if (this.first !== null) {
        const { value, done } = await this.first;
        this.first = null;
        if (done === true) return;
        yield value;
      }
      yield* this.events;
    } finally {
      this.close();
    }
  }

  /** End the watch. */
  close(): void {
    this.stop.abort();
  }

  private async *once(sandbox: Sandbox, query: { path: string }, signal: AbortSignal): AsyncGenerator<FileEvent> {
    const lines = sandbox.api.lines("get", `${FILES}/watch`, {
      path: { ref: sandbox.id }, query: { ...query, ...(this.token !== undefined && { since: this.token }) }, signal,
    }); // prettier-ignore
    let root = "";
    for await (const line of lines) {
      if (typeof line.token === "string" && line.token !== "") this.token = line.token;
      if (line.type === "ready") {
        root = line.path as string;
        this.established();
      } else {
        yield fromWire(line) as FileEvent;
        if (line.type === "removed" && line.path === root) return;
      }
    }
    throw new ServerUnreachable("the watch ended early");
  }
}
