/** `Client`: a server. */

import { Api, type ApiOptions, type CallOptions, type Wire } from "./api.js";
import { Audit, Budgets, type EventFilter, readEvents, readMetrics, Records, Webhooks } from "./records.js";
import { Images, Snapshots, Volumes } from "./storage.js";

export class Client {
  /** Typed calls of the HTTP API, for routes without a method here. */
  readonly api: Api;
  readonly audit: Audit;
  readonly budgets: Budgets;
  readonly images: Images;
  readonly snapshots: Snapshots;
  readonly volumes: Volumes;
  readonly webhooks: Webhooks;
  readonly pool: Pool;
  readonly tokens: Tokens;

  constructor(options: ApiOptions = {}) {
    this.api = new Api(options);
    this.audit = new Audit(this.api);
    this.budgets = new Budgets(this.api);
    this.images = new Images(this.api);
    this.snapshots = new Snapshots(this.api);
    this.volumes = new Volumes(this.api);
    this.webhooks = new Webhooks(this.api);
    this.pool = new Pool(this.api);
    this.tokens = new Tokens(this.api);
  }

  /** Return the version and state of the server. */
  info(options: CallOptions = {}): Promise<Wire<"ServerInfo">> {
    return this.api.json("get", "/v1/server", options);
  }
  /** Check that the host provides everything that isolation needs. */
  doctor(options: CallOptions = {}): Promise<Wire<"Report">> {
    return this.api.json("get", "/v1/doctor", options);
  }
  health(options: CallOptions = {}): Promise<Wire<"Health">> {
    return this.api.json("get", "/healthz", options);
  }
  /** Check that the server can create sandboxes. */
  readiness(options: CallOptions = {}): Promise<Wire<"Readiness">> {
    return this.api.json("get", "/readyz", options);
  }
  /** Return figures in the format of Prometheus. */
  metrics(options: CallOptions = {}): Promise<string> {
    return readMetrics(this.api, options);
  }
  async stop(options: CallOptions = {}): Promise<void> {
    await this.api.act("post", "/v1/server/stop", options);
  }
  /** Return the languages that the server knows. */
  async languages(options: CallOptions = {}): Promise<Wire<"LanguageInfo">[]> {
    return (await this.api.json("get", "/v1/languages", options)).languages;
  }
  /** Return the resource usage of sandboxes, of all by default. */
  async stats(sandboxes: string[] = [], options: CallOptions = {}): Promise<Wire<"SandboxStats">[]> {
    return (await this.api.json("get", "/v1/stats", { query: { sandbox: sandboxes }, ...options })).sandboxes;
  }
  events(filter: EventFilter = {}): AsyncGenerator<Wire<"Event">> {
    return readEvents(this.api, filter);
  }
  /** Return usage and cost `by` sandbox, `label:KEY`, actor, image or day. */
  usage({ signal, ...query }: CallOptions & { by?: string; since?: string; until?: string; sandbox?: string; label?: string; owner?: string } = {}): Promise<Wire<"UsageReport">> {
    return this.api.json("get", "/v1/usage", { query, signal });
  }
  /** Return the trace of a sandbox, also of a deleted one. */
  records(sandbox: string): Records {
    return new Records(this.api, sandbox);
  }
  /** List the copies of a repository: sandboxes with a review. */
  async repoCopies({ origin, signal }: CallOptions & { origin?: string } = {}): Promise<Wire<"RepoCopies">> {
    return this.api.json("get", "/v1/review/copies", { query: origin === undefined ? {} : { origin }, signal });
  }
  /** Return the git refs of all ledgers, for a git remote. */
  async reviewRefs({ origin, signal }: CallOptions & { origin?: string } = {}): Promise<Wire<"ReviewRefsList">> {
    return this.api.json("get", "/v1/review/git/refs", { query: origin === undefined ? {} : { origin }, signal });
  }
  /** Create a sandbox from the start of a trace, for a program that replays its steps. */
  createReplay(request: Partial<Wire<"ReplayRequest">> & { imageDigest: string }, options: CallOptions = {}): Promise<Wire<"SandboxInfo">> {
    const headers = { "idempotency-key": crypto.randomUUID() };
    return this.api.json("post", "/v1/replays", { body: request as Wire<"ReplayRequest">, headers, ...options });
  }
  /** Return the OpenAPI document of the server. */
  openapi(options: CallOptions = {}): Promise<unknown> {
    return this.api.json("get", "/openapi.json", options);
  }
}

/** Sandboxes that the server keeps ready. */
export class Pool {
  constructor(private readonly api: Api) {}

  show(options: CallOptions = {}): Promise<Wire<"PoolInfo">> {
    return this.api.json("get", "/v1/pool", options);
  }
  set(image: string, size: number, options: CallOptions = {}): Promise<Wire<"PoolInfo">> {
    return this.api.json("put", "/v1/pool", { body: { image, size }, ...options });
  }
  /** Delete all ready sandboxes. */
  drain(options: CallOptions = {}): Promise<Wire<"PoolInfo">> {
    return this.api.json("delete", "/v1/pool", options);
  }
}

export class Tokens {
  constructor(private readonly api: Api) {}

  create(scope: Wire<"TokenRequest">["scope"], { owner, note = "", signal }: CallOptions & { owner?: string; note?: string } = {}): Promise<Wire<"TokenInfo">> {
    return this.api.json("post", "/v1/tokens", { body: { scope, owner: owner ?? null, note }, signal });
  }
  async list(options: CallOptions = {}): Promise<Wire<"TokenInfo">[]> {
    return (await this.api.json("get", "/v1/tokens", options)).tokens;
  }
  /** Revoke a token and close its open streams. */
  async remove(token: string, options: CallOptions = {}): Promise<void> {
    await this.api.act("delete", "/v1/tokens/{token}", { path: { token }, ...options });
  }
}
