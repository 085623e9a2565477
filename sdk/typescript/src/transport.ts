/** Connections to a server: `fetch` for TCP on every platform, `node:http` for unix sockets. */

import type { Address } from "./address.js";
import { InvalidRequest, responseError, ServerUnreachable } from "./errors.js";

export type Bytes = Uint8Array;
export type Source = string | Bytes | AsyncIterable<Bytes> | Iterable<Bytes> | ReadableStream<Bytes>;

export interface WireRequest {
  method: string;
  /** Path and query. */
  target: string;
  headers: Record<string, string>;
  body?: Source | undefined;
  signal?: AbortSignal | undefined;
}

export interface WireResponse {
  status: number;
  headers: { get(name: string): string | null };
  body: AsyncIterable<Bytes>;
  /** Release the connection without reading the rest. */
  cancel(): Promise<void>;
}

export interface Transport {
  send(request: WireRequest): Promise<WireResponse>;
  socket(target: string, signal?: AbortSignal): Promise<Socket>;
}

/** An open WebSocket. Iterating it yields messages until the other side closes it. */
export interface Socket extends AsyncIterable<string | Bytes> {
  send(message: string | Bytes): Promise<void>;
  close(): void;
}

/** Open connections to an address. `fetcher` replaces the platform's `fetch`. */
export function openTransport(address: Address, fetcher: typeof fetch = fetch): Transport {
  return {
    send: (request) => (address.socket === null ? sendByFetch(address, request, fetcher) : sendByNode(address, request)),
    socket: (target, signal) => openSocket(address, target, signal),
  };
}

// -- requests ---------------------------------------------------------------------------------------------------------

function withToken(address: Address, headers: Record<string, string>): Record<string, string> {
  return address.token === null ? headers : { ...headers, authorization: `Bearer ${address.token}` };
}

function unreachable(address: Address, error: unknown): ServerUnreachable {
  const place = address.socket === null ? address.url : `unix://${address.socket}`;
  const reason = error instanceof Error ? ((error.cause as Error | undefined)?.message ?? error.message) : String(error);
  const hint = address.socket === null ? "is it running, and SKERRY_SERVER right?" : "start it: `skerry server start`";
  return new ServerUnreachable(`no server at ${place}: ${reason}`, { hint, cause: error });
}

function broken(error: unknown): ServerUnreachable {
  const reason = error instanceof Error ? error.message : String(error);
  return new ServerUnreachable(`the connection to the server broke: ${reason}`, { hint: "`skerry server logs`", cause: error });
}

async function sendByFetch(address: Address, request: WireRequest, fetcher: typeof fetch): Promise<WireResponse> {
  const { method, headers, signal } = request;
  const body = request.body === undefined || isWhole(request.body) ? request.body : toStream(request.body);
  const init = { method, headers: withToken(address, headers), body, signal, redirect: "error", credentials: "omit" };
  let response: Response;
  try {
    response = await fetcher(address.url + request.target, { ...init, ...(body instanceof ReadableStream && { duplex: "half" }) } as RequestInit);
  } catch (error) {
    signal?.throwIfAborted();
    throw unreachable(address, error);
  }
  return {
    status: response.status,
    headers: response.headers,
    body: response.body === null ? emptyBody() : guarded(readStream(response.body), signal),
    cancel: async () => response.body?.cancel(),
  };
}

async function sendByNode(address: Address, request: WireRequest): Promise<WireResponse> {
  const http = await import("node:http");
  const { Readable } = await import("node:stream");
  const { method, target, signal, body } = request;
  const headers: Record<string, string> = withToken(address, { host: "localhost", ...request.headers });
  if (isWhole(body)) headers["content-length"] = String(typeof body === "string" ? new TextEncoder().encode(body).length : body.length);
  signal?.throwIfAborted();
  return new Promise((resolve, reject) => {
    const options = { socketPath: address.socket as string, path: target, method, headers, ...(signal && { signal }) };
    const call = http.request(options, (response) => {
      resolve({
        status: response.statusCode ?? 0,
        headers: { get: (name) => [response.headers[name.toLowerCase()] ?? []].flat().join(", ") || null },
        body: guarded(response, signal),
        cancel: async () => void response.destroy(),
      });
    });
    call.on("error", (error) => reject(signal?.aborted ? signal.reason : unreachable(address, error)));
    if (body === undefined || isWhole(body)) call.end(body);
    else Readable.from(pieces(body)).on("error", (error) => call.destroy(error)).pipe(call);
  });
}

function isWhole(body: Source | undefined): body is string | Bytes {
  return typeof body === "string" || body instanceof Uint8Array;
}

async function* pieces(body: Source): AsyncGenerator<Bytes> {
  if (typeof body === "string") yield new TextEncoder().encode(body);
  else if (body instanceof Uint8Array) yield body;
  else if (body instanceof ReadableStream) yield* readStream(body);
  else yield* body;
}

function toStream(body: Source): ReadableStream<Bytes> {
  if (body instanceof ReadableStream) return body;
  const source = pieces(body);
  return new ReadableStream<Bytes>({
    async pull(controller) {
      const { done, value } = await source.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await source.return(undefined);
    },
  });
}

/** Read a stream. Browsers have no async iterator for it yet. */
async function* readStream(stream: ReadableStream<Bytes>): AsyncGenerator<Bytes> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

async function* guarded(body: AsyncIterable<Bytes>, signal: AbortSignal | undefined): AsyncGenerator<Bytes> {
  try {
    yield* body;
  } catch (error) {
    signal?.throwIfAborted();
    throw broken(error);
  }
}

async function* emptyBody(): AsyncGenerator<Bytes> {}

// -- WebSockets -------------------------------------------------------------------------------------------------------

interface AnyWebSocket {
  binaryType: string;
  bufferedAmount: number;
  send(data: string | Bytes): void;
  close(): void;
  addEventListener(type: string, listener: (event: never) => void): void;
}

const MAX_BUFFERED = 1 << 20;

/** Open a WebSocket. Node.js uses the package `ws`, which supports unix sockets and reports why a server refused. */
async function openSocket(address: Address, target: string, signal?: AbortSignal): Promise<Socket> {
  signal?.throwIfAborted();
  const native = globalThis as { WebSocket?: new (url: string, protocols: string[]) => AnyWebSocket; process?: { versions?: { node?: string } } };
  if (native.process?.versions?.node === undefined) {
    if (native.WebSocket === undefined) throw new InvalidRequest("this platform has no WebSocket");
    const protocols = ["skerry", ...(address.token === null ? [] : [`skerry.token.${address.token}`])];
    return wrapped(new native.WebSocket(address.url.replace(/^http/, "ws") + target, protocols), signal);
  }
  const { WebSocket } = await import("ws");
  const url = address.socket === null ? address.url.replace(/^http/, "ws") + target : `ws+unix:${address.socket}:${target}`;
  const headers = withToken(address, { host: address.socket === null ? new URL(address.url).host : "localhost" });
  return wrapped(new WebSocket(url, { headers, perMessageDeflate: false, followRedirects: false }) as unknown as AnyWebSocket, signal);
}

function wrapped(socket: AnyWebSocket, signal?: AbortSignal): Promise<Socket> {
  socket.binaryType = "arraybuffer";
  const waiting: (string | Bytes)[] = [];
  let wake = (): void => undefined;
  let ended = false;
  let failure: Error | null = null;
  const abort = (): void => {
    failure ??= signal?.reason as Error;
    socket.close();
    ended = true;
    wake();
  };
  signal?.addEventListener("abort", abort, { once: true });
  socket.addEventListener("message", ({ data }: { data: string | ArrayBuffer }) => {
    waiting.push(typeof data === "string" ? data : new Uint8Array(data));
    wake();
  });
  const opened = new Promise<void>((resolve, reject) => {
    socket.addEventListener("open", () => resolve());
    // `ws` passes the response of a refused upgrade; a browser tells nothing about the reason.
    (socket as { on?: (name: string, listener: (request: unknown, response: never) => void) => void }).on?.(
      "unexpected-response",
      (_, response: AsyncIterable<Bytes> & { statusCode: number }) => {
        void readText(response).then((body) => reject(responseError(response.statusCode, body)), reject);
      },
    );
    socket.addEventListener("error", (event: { message?: string }) => {
      failure ??= broken(new Error(event.message || "WebSocket error"));
      reject(failure);
    });
    socket.addEventListener("close", () => {
      signal?.removeEventListener("abort", abort);
      ended = true;
      wake();
      reject(failure ?? broken(new Error("closed")));
    });
  });
  const open: Socket = {
    async send(message) {
      if (ended) throw failure ?? broken(new Error("closed"));
      socket.send(message);
      while (socket.bufferedAmount > MAX_BUFFERED && !ended) await new Promise((resolve) => setTimeout(resolve, 5));
    },
    close: () => socket.close(),
    async *[Symbol.asyncIterator]() {
      for (;;) {
        while (waiting.length > 0) yield waiting.shift() as string | Bytes;
        if (ended) {
          if (failure !== null) throw failure;
          return;
        }
        await new Promise<void>((resolve) => (wake = resolve));
      }
    },
  };
  return opened.then(() => open);
}

// -- bodies -----------------------------------------------------------------------------------------------------------

export async function readBytes(body: AsyncIterable<Bytes>): Promise<Bytes> {
  const parts: Bytes[] = [];
  for await (const part of body) parts.push(part);
  return joinBytes(parts);
}

export async function readText(body: AsyncIterable<Bytes>): Promise<string> {
  return new TextDecoder().decode(await readBytes(body));
}

export function joinBytes(parts: Bytes[]): Bytes {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Yield the lines of a stream of JSON lines; an empty line only keeps the connection alive. */
export async function* readLines(body: AsyncIterable<Bytes>, maxLine = 64 << 20): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const part of body) {
    const lines = (rest + decoder.decode(part, { stream: true })).split("\n");
    rest = lines.pop() as string;
    if (rest.length > maxLine) throw broken(new Error("a line of the response is too long"));
    for (const line of lines) if (line.trim() !== "") yield line;
  }
  if (rest.trim() !== "") yield rest;
}
