/** `sandbox.review`: the changes of a workspace, hunk by hunk. Applying them to files of this machine needs the CLI. */

import { resumed, type CallOptions, type Wire } from "./api.js";
import { InvalidRequest, ServerUnreachable } from "./errors.js";
import { fromWire } from "./names.js";
import type { Sandbox } from "./sandbox.js";
import { type Bytes, readText, type Source } from "./transport.js";

const REVIEW = "/v1/sandboxes/{ref}/review";

export type Hunk = Wire<"Hunk">;
export type Changes = Wire<"Review">;
export type ReviewEvent = Wire<"ReviewEvent">;
type HunkRef = Hunk | string;
interface Paths extends CallOptions {
  /** Only these files or directories. */
  paths?: string[];
  /** Globs of files to leave out. */
  exclude?: string[];
}

const idOf = (hunk: HunkRef): string => (typeof hunk === "string" ? hunk : hunk.id);

function idsOf(hunks: HunkRef[]): string[] {
  if (hunks.length === 0) throw new InvalidRequest("no hunk given", { hint: "like accept(...hunks)" });
  return hunks.map(idOf);
}

export class SandboxReview {
  constructor(private readonly sandbox: Sandbox) {}

  private get path(): { ref: string } {
    return { ref: this.sandbox.id };
  }

  /** Start recording the changes of a directory; its current content is the base. */
  async start({ signal, ...given }: CallOptions & Partial<Wire<"BeginReview">> = {}): Promise<Changes> {
    return this.sandbox.api.json("post", REVIEW, { path: this.path, body: given as Wire<"BeginReview">, signal });
  }

  /** Return all differences from the base, by file and hunk. */
  async changes({ paths, exclude, state, signal }: Paths & { state?: Hunk["state"] } = {}): Promise<Changes> {
    const query = { ...(paths && { paths }), ...(exclude && { exclude }), ...(state && { state }) };
    return this.sandbox.api.json("get", REVIEW, { path: this.path, query, signal });
  }

  /** Return a hunk with its whole text. */
  async hunk(hunk: HunkRef, options: CallOptions = {}): Promise<Hunk> {
    return this.sandbox.api.json("get", `${REVIEW}/hunks/{hunk}`, { path: { ...this.path, hunk: idOf(hunk) }, ...options });
  }

  /** Return the commands that produced a hunk, newest last. */
  async origin(hunk: HunkRef, options: CallOptions = {}): Promise<Wire<"HunkOrigin">> {
    return this.sandbox.api.json("get", `${REVIEW}/hunks/{hunk}/origin`, { path: { ...this.path, hunk: idOf(hunk) }, ...options });
  }

  /** Return the difference from the base as a patch. */
  async diff({ paths, signal }: Omit<Paths, "exclude"> = {}): Promise<string> {
    const response = await this.sandbox.api.send("get", `${REVIEW}/diff`, { path: this.path, query: { ...(paths && { paths }) }, signal }, "text/x-diff");
    return readText(response.body);
  }

  /** Return the changed files with their numbers of lines. */
  async diffStat({ paths, signal }: Omit<Paths, "exclude"> = {}): Promise<Wire<"DiffStat">> {
    return this.sandbox.api.json("get", `${REVIEW}/diff`, { path: this.path, query: { stat: true, ...(paths && { paths }) }, signal });
  }

  /** Return one entry for each command, oldest first. */
  async history({ paths, since, patch, limit, signal }: Omit<Paths, "exclude"> & { since?: string; patch?: boolean; limit?: number } = {}): Promise<Wire<"History">> {
    const query = { ...(paths && { paths }), ...(since && { since }), ...(patch && { patch }), ...(limit !== undefined && { limit }) };
    return this.sandbox.api.json("get", `${REVIEW}/history`, { path: this.path, query, signal });
  }

  /** Iterate over changes and decisions until the sandbox is deleted; `since`: first the entries after that commit. */
  async *watch({ since, signal }: CallOptions & { since?: string } = {}): AsyncGenerator<ReviewEvent> {
    let tip = since;
    const once = async function* (sandbox: Sandbox): AsyncGenerator<ReviewEvent> {
      const query = tip === undefined ? {} : { since: tip };
      for await (const line of sandbox.api.lines("get", `${REVIEW}/watch`, { path: { ref: sandbox.id }, query, signal })) {
        if (typeof line.tip === "string" && line.tip !== "") tip = line.tip;
        if (line.type === "end") return;
        if (line.type !== "ready") yield fromWire(line) as ReviewEvent;
      }
      throw new ServerUnreachable("the watch ended early");
    };
    yield* resumed(() => once(this.sandbox), signal);
  }

  /** Accept hunks: `skerry apply` will write them. Needs a token of scope `review`. */
  async accept(...hunks: HunkRef[]): Promise<Hunk[]> {
    return (await this.decide({ accept: idsOf(hunks) })).hunks;
  }

  /** Reject hunks. Programs inside can read the reason. */
  async reject(hunks: HunkRef | HunkRef[], { reason, signal }: CallOptions & { reason?: string } = {}): Promise<Hunk[]> {
    return (await this.decide({ reject: idsOf([hunks].flat()), reason: reason ?? null }, { signal })).hunks;
  }

  /** Reopen decided hunks. */
  async reopen(...hunks: HunkRef[]): Promise<Hunk[]> {
    return (await this.decide({ reopen: idsOf(hunks) })).hunks;
  }

  /** Split hunks into their smallest parts. */
  async split(...hunks: HunkRef[]): Promise<Hunk[]> {
    return (await this.decide({ split: idsOf(hunks) })).hunks;
  }

  /** Accept a hunk with another text. */
  async edit(hunk: HunkRef, text: string, { reason, signal }: CallOptions & { reason?: string } = {}): Promise<Hunk[]> {
    return (await this.decide({ edit: { [idOf(hunk)]: text }, reason: reason ?? null }, { signal })).hunks;
  }

  /** Make several decisions at once. That never accepts a hunk flagged with a risk: `heldBack` lists those. */
  async decide(decisions: Partial<Wire<"Decisions">>, options: CallOptions = {}): Promise<Wire<"DecisionResult">> {
    return this.sandbox.api.json("post", `${REVIEW}/decisions`, { path: this.path, body: decisions as Wire<"Decisions">, ...options });
  }

  /** Return the accepted changes that `skerry apply` would write now. */
  async accepted({ paths, exclude, signal }: Paths = {}): Promise<Wire<"PatchSet">> {
    return this.sandbox.api.json("get", `${REVIEW}/patch-set`, { path: this.path, query: { ...(paths && { paths }), ...(exclude && { exclude }) }, signal });
  }

  /** Yield the content of a file of the patch set. */
  blob(oid: string, options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.sandbox.api.bytes("get", `${REVIEW}/blobs/{oid}`, { path: { ...this.path, oid }, ...options });
  }

  /** Record that a program wrote accepted hunks to their place. */
  async recordApply(apply: Wire<"AppliedRequest">, options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${REVIEW}/applies`, { path: this.path, body: apply, ...options });
  }

  /** Record that an apply was undone. */
  async recordUndo(apply: string, options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("delete", `${REVIEW}/applies/{apply}`, { path: { ...this.path, apply }, ...options });
  }

  /** Iterate over the files of the workspace's last known state. */
  async *tree({ paths, signal }: Omit<Paths, "exclude"> = {}): AsyncGenerator<Record<string, unknown>> {
    yield* this.sandbox.api.lines("get", `${REVIEW}/tree`, { path: this.path, query: { ...(paths && { paths }) }, signal });
  }

  /** Bring later edits of the user into the workspace; the format is that of the Python SDK. */
  async pull(source: Source, options: CallOptions = {}): Promise<Wire<"PullResult">> {
    const content = { source, type: "application/octet-stream" };
    return this.sandbox.api.json("post", `${REVIEW}/pulls`, { path: this.path, content, ...options });
  }

  /** Yield a git pack of the ledger. */
  pack(request: Wire<"PackRequest">, options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.sandbox.api.bytes("post", `${REVIEW}/git/pack`, { path: this.path, body: request, ...options }, "application/x-git-pack");
  }
}
