/** Typed calls: method, path, query and body are checked against the server's OpenAPI document at compile time. */

import { type Address, resolveAddress } from "./address.js";
import { responseError, ServerUnreachable, SkerryError, wireError } from "./errors.js";
import { type Camel, fromWire, toWire } from "./names.js";
import type { components, paths } from "./schema.js";
import { type Bytes, openTransport, readLines, readText, type Socket, type Source, type Transport, type WireResponse } from "./transport.js";

export type Schemas = components["schemas"];
/** A type of the API with camelCase names. */
export type Wire<Name extends keyof Schemas> = Camel<Schemas[Name]>;

type Path = keyof paths;
type MethodOf<P extends Path> = Extract<keyof paths[P], "get" | "put" | "post" | "delete" | "patch">;
type Field<T, K extends string> = T extends { [key in K]?: infer V } ? V : undefined;
type Parameters<O> = Field<O, "parameters">;
export type PathOf<O> = Field<Parameters<O>, "path">;
export type QueryOf<O> = Exclude<Field<Parameters<O>, "query">, undefined>;
type Content<O, Media extends string> = O extends { content: { [key in Media]: infer V } } ? V : never;
export type BodyOf<O> = O extends { requestBody?: infer B } ? Content<NonNullable<B>, "application/json"> : never;
export type ResultOf<O> = O extends { responses: infer R } ? { [S in keyof R]: Content<R[S], "application/json"> }[keyof R] : never;

export interface CallOptions {
  signal?: AbortSignal | undefined;
}

export interface Call<O> extends CallOptions {
  path?: { [K in keyof PathOf<O>]: string };
  query?: Partial<Camel<QueryOf<O>>>;
  body?: Camel<BodyOf<O>>;
  /** A body that is not JSON, with its media type. */
  content?: { source: Source; type: string };
  headers?: Record<string, string>;
}

export interface ApiOptions {
  /** Like `https://host:7070` or `unix:///run/skerry/api.sock`. Default: SKERRY_SERVER, or this host's server. */
  server?: string;
  /** Default: SKERRY_TOKEN. */
  token?: string;
  fetch?: typeof fetch;
}

export class Api {
  private readonly options: ApiOptions;
  private opened: Promise<{ address: Address; transport: Transport }> | null = null;

  constructor(options: ApiOptions = {}) {
    this.options = options;
  }

  /** Send a call and return the raw response; a failure raises the error of its code. */
  async send<P extends Path, M extends MethodOf<P>>(
    method: M, path: P, call: Call<paths[P][M]> = {}, accept = "application/json",
  ): Promise<WireResponse> { // prettier-ignore
    const { transport } = await this.open();
    const headers: Record<string, string> = { accept, ...call.headers };
    let body: Source | undefined;
    if (call.content !== undefined) {
      body = call.content.source;
      headers["content-type"] = call.content.type;
    } else if (call.body !== undefined) {
      body = JSON.stringify(toWire(call.body));
      headers["content-type"] = "application/json";
    }
    const target = targetOf(path, call.path as Record<string, string> | undefined, call.query as Record<string, unknown> | undefined);
    const response = await transport.send({ method: method.toUpperCase(), target, headers, body, signal: call.signal });
    if (response.status >= 400) throw responseError(response.status, await readText(response.body));
    return response;
  }

  /** Return the JSON of a response with camelCase names. */
  async json<P extends Path, M extends MethodOf<P>>(
    method: M, path: P, call: Call<paths[P][M]> = {},
  ): Promise<Camel<ResultOf<paths[P][M]>>> { // prettier-ignore
    const response = await this.send(method, path, call);
    return parse(await readText(response.body)) as Camel<ResultOf<paths[P][M]>>;
  }

  /** Return the JSON of a response, or null if it has none (204). */
  async jsonOrNull<P extends Path, M extends MethodOf<P>>(
    method: M, path: P, call: Call<paths[P][M]> = {},
  ): Promise<Camel<ResultOf<paths[P][M]>> | null> { // prettier-ignore
    const response = await this.send(method, path, call);
    const text = await readText(response.body);
    return text === "" ? null : (parse(text) as Camel<ResultOf<paths[P][M]>>);
  }

  /** Send a call whose response has no content. */
  async act<P extends Path, M extends MethodOf<P>>(method: M, path: P, call: Call<paths[P][M]> = {}): Promise<void> {
    const response = await this.send(method, path, call);
    await readText(response.body);
  }

  /** Yield the bytes of a response. Leaving the loop early closes the connection. */
  async *bytes<P extends Path, M extends MethodOf<P>>(
    method: M, path: P, call: Call<paths[P][M]> = {}, accept = "application/octet-stream",
  ): AsyncGenerator<Bytes> { // prettier-ignore
    const response = await this.send(method, path, call, accept);
    try {
      yield* response.body;
    } finally {
      await response.cancel().catch(() => undefined);
    }
  }

  /** Yield the lines of a stream as parsed JSON, with names as on the wire. A line with an error raises it. */
  async *lines<P extends Path, M extends MethodOf<P>>(
    method: M, path: P, call: Call<paths[P][M]> = {},
  ): AsyncGenerator<Record<string, unknown>> { // prettier-ignore
    const response = await this.send(method, path, call, "application/x-ndjson");
    try {
      for await (const line of readLines(response.body)) {
        const value: unknown = JSON.parse(line);
        const error = wireError(value);
        if (error !== null) throw error;
        yield value as Record<string, unknown>;
      }
    } finally {
      await response.cancel().catch(() => undefined);
    }
  }

  /** Open the WebSocket of a path. */
  async socket<P extends Path>(path: P, call: Omit<Call<paths[P] extends { get: infer O } ? O : never>, "body"> = {}): Promise<Socket> {
    const { transport } = await this.open();
    return transport.socket(targetOf(path, call.path as Record<string, string>, call.query as Record<string, unknown>), call.signal);
  }

  private open(): Promise<{ address: Address; transport: Transport }> {
    this.opened ??= resolveAddress(this.options.server, this.options.token).then((address) => ({
      address,
      transport: openTransport(address, this.options.fetch),
    }));
    return this.opened;
  }
}

/** Fill in the parameters of a path. A value that would name another path is refused. */
function targetOf(path: string, values: Record<string, string> = {}, query: Record<string, unknown> = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name] ?? "";
    if (value === "" || /^\.+$/.test(value)) throw new SkerryError(`${name}: ${JSON.stringify(value)} is not a name`);
    return encodeURIComponent(value);
  });
  const pairs = Object.entries(toWire(query) as Record<string, unknown>).flatMap(([name, value]) =>
    [value].flat().filter((one) => one !== undefined && one !== null).map((one) => `${encodeURIComponent(name)}=${encodeURIComponent(String(one))}`),
  );
  return pairs.length === 0 ? filled : `${filled}?${pairs.join("&")}`;
}

function parse(text: string): unknown {
  try {
    return fromWire(JSON.parse(text));
  } catch (error) {
    throw new SkerryError("the server's response cannot be read", { hint: "is it a Skerry server of the same version?", cause: error });
  }
}

const RETRY_MS = [100, 200, 500, 1000, 2000, 5000, 5000, 5000, 5000];

/** Yield from `connect`, which is called again after a broken connection and continues at its own position. */
export async function* resumed<T>(connect: () => AsyncIterable<T>, signal?: AbortSignal): AsyncGenerator<T> {
  for (let failures = 0; ; failures++) {
    try {
      for await (const one of connect()) {
        failures = 0;
        yield one;
      }
      return;
    } catch (error) {
      const pause = RETRY_MS[failures];
      if (!(error instanceof ServerUnreachable) || pause === undefined) throw error;
      await sleep(pause, signal);
    }
  }
}

export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
