/** `sandbox.network` and `sandbox.previews`. */

import { resumed, type CallOptions, type Wire } from "./api.js";
import { NotFound } from "./errors.js";
import { fromWire } from "./names.js";
import type { Sandbox } from "./sandbox.js";
import type { Bytes, Source } from "./transport.js";

const NETWORK = "/v1/sandboxes/{ref}/network";
const PREVIEWS = "/v1/sandboxes/{ref}/previews";

export type NetworkAttempt = Wire<"NetworkAttempt">;

export class SandboxNetwork {
  constructor(private readonly sandbox: Sandbox) {}

  private get path(): { ref: string } {
    return { ref: this.sandbox.id };
  }

  /** Return the policy and the traffic counters. */
  async show(options: CallOptions = {}): Promise<Wire<"NetworkInfo">> {
    return this.sandbox.api.json("get", NETWORK, { path: this.path, ...options });
  }

  /** Replace the policy. Connections that it does not allow are closed. */
  async set(network: Partial<Wire<"Network">>, options: CallOptions = {}): Promise<Wire<"NetworkInfo">> {
    return this.sandbox.api.json("put", NETWORK, { path: this.path, body: network, ...options });
  }

  async allow(...hosts: string[]): Promise<Wire<"NetworkInfo">> {
    return this.change({ allow: hosts });
  }

  async deny(...hosts: string[]): Promise<Wire<"NetworkInfo">> {
    return this.change({ deny: hosts });
  }

  /** Add handlers that change, redirect or answer requests. */
  async addHandlers(...handlers: Partial<Wire<"Handler">>[]): Promise<Wire<"NetworkInfo">> {
    return this.change({ handlers: handlers as Wire<"Handler">[] });
  }

  async removeHandlers(...hosts: string[]): Promise<Wire<"NetworkInfo">> {
    return this.change({ removeHandlers: hosts });
  }

  /** Write the exchanges with these hosts, and no others, to the trace from now on. */
  async mirror(...hosts: string[]): Promise<Wire<"NetworkInfo">> {
    return this.change({ mirror: hosts });
  }

  /** Add rules, presets and handlers. */
  async change(change: Partial<Wire<"NetworkChange">>, options: CallOptions = {}): Promise<Wire<"NetworkInfo">> {
    return this.sandbox.api.json("patch", NETWORK, { path: this.path, body: change, ...options });
  }

  /** Iterate over the attempts, oldest first; with `follow` until the sandbox is deleted. */
  async *log({ since = 0, follow = false, denied = false, signal }: CallOptions & { since?: number; follow?: boolean; denied?: boolean } = {}): AsyncGenerator<NetworkAttempt> {
    let last = since;
    const once = async function* (sandbox: Sandbox): AsyncGenerator<NetworkAttempt> {
      for await (const line of sandbox.api.lines("get", `${NETWORK}/log`, { path: { ref: sandbox.id }, query: { since: last, follow, denied }, signal })) {
        const attempt = fromWire(line) as NetworkAttempt;
        last = attempt.seq;
        yield attempt;
      }
    };
    yield* resumed(() => once(this.sandbox), signal);
  }

  /** Return the smallest policy that allows the logged attempts. */
  async suggest(options: CallOptions = {}): Promise<Wire<"Network">> {
    return this.sandbox.api.json("get", `${NETWORK}/suggested-policy`, { path: this.path, ...options });
  }

  /** Iterate over approval requests for destinations that no rule names (`onUnknown: "ask"`). */
  async *approvals({ signal }: CallOptions = {}): AsyncGenerator<Wire<"ApprovalRequest">> {
    for await (const line of this.sandbox.api.lines("get", `${NETWORK}/approvals`, { path: this.path, signal })) {
      yield fromWire(line) as Wire<"ApprovalRequest">;
    }
  }

  /** Answer an approval request; `remember` makes a rule of the answer. */
  async answer(approval: string, { allow, remember = false, signal }: CallOptions & { allow: boolean; remember?: boolean }): Promise<void> {
    await this.sandbox.api.act("post", `${NETWORK}/approvals/{approval}`, { path: { ...this.path, approval }, body: { allow, remember }, signal });
  }

  /** Iterate over the requests to a host that wait for a decision of this program (`handlers` of the policy). */
  async *handlerCalls(host: string, { client, signal }: CallOptions & { client?: string } = {}): AsyncGenerator<Wire<"HandlerCall">> {
    const query = { host, ...(client !== undefined && { client }) };
    for await (const line of this.sandbox.api.lines("get", `${NETWORK}/handlers`, { path: this.path, query, signal })) {
      yield fromWire(line) as Wire<"HandlerCall">;
    }
  }

  /** Decide about a waiting request or response. */
  async decide(call: string, decision: Partial<Wire<"HandlerDecision">>, options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${NETWORK}/handlers/{call}`, { path: { ...this.path, call }, body: decision, ...options });
  }

  /** Describe the recorded HTTP exchanges. */
  async cassetteInfo(options: CallOptions = {}): Promise<Wire<"CassetteInfo">> {
    return this.sandbox.api.json("get", `${NETWORK}/cassette`, { path: this.path, ...options });
  }

  /** Yield the recorded HTTP exchanges as a file. */
  cassette(options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.sandbox.api.bytes("get", `${NETWORK}/cassette`, { path: this.path, ...options });
  }

  /** Replace the cassette of a sandbox that replays. */
  async loadCassette(source: Source, options: CallOptions = {}): Promise<Wire<"CassetteInfo">> {
    const content = { source, type: "application/octet-stream" };
    return this.sandbox.api.json("put", `${NETWORK}/cassette`, { path: this.path, content, ...options });
  }
}

export class Previews {
  constructor(private readonly sandbox: Sandbox) {}

  async expose(port: number, { signal, ...given }: CallOptions & { name?: string; public?: boolean; expires?: string | number; token?: string } = {}): Promise<Preview> {
    const body = { port, public: false, ...given } as Wire<"PreviewRequest">;
    return new Preview(this.sandbox, await this.sandbox.api.json("post", PREVIEWS, { path: { ref: this.sandbox.id }, body, signal }));
  }

  async list(options: CallOptions = {}): Promise<Preview[]> {
    const { previews } = await this.sandbox.api.json("get", PREVIEWS, { path: { ref: this.sandbox.id }, ...options });
    return previews.map((info) => new Preview(this.sandbox, info));
  }

  /** Return the preview of a port, or of a name. */
  async get(port: number | string, options: CallOptions = {}): Promise<Preview> {
    const found = (await this.list(options)).find(({ info }) => info.port === port || info.name === port);
    if (found === undefined) throw new NotFound(`${this.sandbox.id} has no preview of ${port}`);
    return found;
  }
}

/** A port of a sandbox at a URL. */
export class Preview {
  constructor(private readonly sandbox: Sandbox, readonly info: Wire<"PreviewInfo">) {}

  get port(): number {
    return this.info.port;
  }
  get url(): string {
    return this.info.url;
  }
  get pathUrl(): string {
    return this.info.pathUrl;
  }
  get token(): string | null {
    return this.info.token;
  }
  /** The URL with the token. It gives access to its holder. */
  get link(): string {
    const token = this.token === null ? "" : `?skerry_token=${encodeURIComponent(this.token)}`;
    return this.url + token;
  }
  get name(): string | null {
    return this.info.name;
  }
  get public(): boolean {
    return this.info.public;
  }
  /** The end as a Unix time; null: until it is revoked. */
  get expires(): number | null {
    return this.info.expires;
  }

  /** Revoke it and close its open connections. */
  async revoke(options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("delete", `${PREVIEWS}/{port}`, { path: { ref: this.sandbox.id, port: String(this.port) }, ...options });
  }
}
