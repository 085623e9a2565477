/** Traces, events, the audit log, usage and budgets. */

import { type Api, resumed, type CallOptions, type Wire } from "./api.js";
import { fromWire } from "./names.js";
import { type Bytes, readText } from "./transport.js";

const TRACE = "/v1/sandboxes/{ref}/trace";

/** The trace of a sandbox: all steps with their inputs and outputs, also after its deletion. */
export class Records {
  constructor(private readonly api: Api, readonly sandbox: string) {}

  /** Iterate over the steps; with `follow`, until the sandbox is deleted. Ends of steps follow as `of` lines. */
  async *trace({ follow = false, signal }: CallOptions & { follow?: boolean } = {}): AsyncGenerator<Wire<"TraceStep"> | Wire<"TraceEnd">> {
    for await (const line of this.api.lines("get", TRACE, { path: { ref: this.sandbox }, query: { follow }, signal })) {
      yield fromWire(line) as Wire<"TraceStep"> | Wire<"TraceEnd">;
    }
  }
  /** Yield the content of an input or output by its SHA-256. */
  blob(sha256: string, options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.api.bytes("get", `${TRACE}/blobs/{sha256}`, { path: { ref: this.sandbox, sha256 }, ...options });
  }
  /** Yield the trace as one file, for `skerry replay`. */
  export(options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.api.bytes("get", `${TRACE}/export`, { path: { ref: this.sandbox }, ...options }, "application/x-tar");
  }
}

export interface EventFilter extends CallOptions {
  follow?: boolean;
  /** Only events after this number. */
  since?: number;
  sandbox?: string;
  type?: string;
}

/** Iterate over events of sandboxes and processes; with `follow`, for ever. */
export async function* readEvents(api: Api, { follow = false, since, sandbox, type, signal }: EventFilter): AsyncGenerator<Wire<"Event">> {
  let last = since;
  const once = async function* (): AsyncGenerator<Wire<"Event">> {
    const query = { follow, ...(last !== undefined && { since: last }), ...(sandbox && { sandbox }), ...(type && { type }) };
    for await (const line of api.lines("get", "/v1/events", { query, signal })) {
      const event = fromWire(line) as Wire<"Event">;
      last = event.seq;
      yield event;
    }
  };
  yield* resumed(once, signal);
}

type AuditQuery = { sandbox?: string; actor?: string; owner?: string; type?: string; since?: number };

export class Audit {
  constructor(private readonly api: Api) {}

  /** Iterate over the records, newest first. */
  async *list({ signal, ...filter }: CallOptions & AuditQuery = {}): AsyncGenerator<Wire<"AuditRecord">> {
    for (let before: number | null | undefined; before !== null; ) {
      const query = { ...filter, ...(before !== undefined && { before }) };
      const page: Wire<"AuditPage"> = await this.api.json("get", "/v1/audit", { query, signal });
      yield* page.records;
      before = page.next;
    }
  }
  /** Check the hash chain and its signatures. */
  async verify(options: CallOptions = {}): Promise<Wire<"AuditReport">> {
    return this.api.json("get", "/v1/audit/verify", options);
  }
  /** Yield the lines of the log, which `skerry audit verify FILE` checks. */
  async *export(options: CallOptions = {}): AsyncGenerator<Record<string, unknown>> {
    yield* this.api.lines("get", "/v1/audit/export", options);
  }
  async keys(options: CallOptions = {}): Promise<Wire<"AuditKey">[]> {
    return (await this.api.json("get", "/v1/audit/keys", options)).keys;
  }
  /** Continue the log with a new key. */
  async rotateKey(options: CallOptions = {}): Promise<Wire<"AuditKey">[]> {
    return (await this.api.json("post", "/v1/audit/keys", options)).keys;
  }
}

export class Budgets {
  constructor(private readonly api: Api) {}

  async list({ sandbox, signal }: CallOptions & { sandbox?: string } = {}): Promise<Wire<"BudgetInfo">[]> {
    return (await this.api.json("get", "/v1/budgets", { query: sandbox === undefined ? {} : { sandbox }, signal })).budgets;
  }
  /** Set the budget of a label (`task=42`) or an owner. */
  async set(budget: Partial<Wire<"Budget">>, { label, owner, signal }: CallOptions & { label?: string; owner?: string }): Promise<Wire<"BudgetInfo">> {
    const body = { budget, label: label ?? null, owner: owner ?? null } as Wire<"BudgetRequest">;
    return this.api.json("put", "/v1/budgets", { body, signal });
  }
  async remove(budget: string, options: CallOptions = {}): Promise<void> {
    await this.api.act("delete", "/v1/budgets/{budget}", { path: { budget }, ...options });
  }
}

export class Webhooks {
  constructor(private readonly api: Api) {}

  async list(options: CallOptions = {}): Promise<Wire<"WebhookInfo">[]> {
    return (await this.api.json("get", "/v1/webhooks", options)).webhooks;
  }
  async test(webhook: string, options: CallOptions = {}): Promise<Wire<"WebhookTest">> {
    return this.api.json("post", "/v1/webhooks/{webhook}/test", { path: { webhook }, ...options });
  }
  /** List the deliveries that were given up. */
  async dead({ webhook, limit, signal }: CallOptions & { webhook?: string; limit?: number } = {}): Promise<Wire<"WebhookDelivery">[]> {
    const query = { ...(webhook && { webhook }), ...(limit !== undefined && { limit }) };
    return (await this.api.json("get", "/v1/webhooks/dead", { query, signal })).deliveries;
  }
  /** Send deliveries again that were given up. */
  async retry(webhook: string, ids: string[] = [], options: CallOptions = {}): Promise<Wire<"WebhookRetry">> {
    return this.api.json("post", "/v1/webhooks/{webhook}/retry", { path: { webhook }, body: { ids }, ...options });
  }
}

export async function readMetrics(api: Api, options: CallOptions): Promise<string> {
  return readText((await api.send("get", "/metrics", options, "text/plain")).body);
}
