/** Snapshots, volumes and images. */

import type { Api, CallOptions, Wire } from "./api.js";
import { SkerryError } from "./errors.js";
import { fromWire } from "./names.js";
import type { Bytes, Source } from "./transport.js";

const SNAPSHOT = "/v1/snapshots/{snapshot}";
const VOLUME = "/v1/volumes/{volume}";
const TAR = "application/x-tar";

/** A snapshot of the files of a sandbox; usable as `image`. */
export class Snapshot {
  constructor(private readonly api: Api, readonly info: Wire<"SnapshotInfo">) {}

  get id(): string {
    return this.info.id;
  }
  get name(): string | null {
    return this.info.name;
  }
  get digest(): string {
    return this.info.digest;
  }
  /** The directory that it has, or null for all files. */
  get path(): string | null {
    return this.info.path;
  }
  get createdAt(): number {
    return this.info.createdAt;
  }
  get expiresAt(): number | null {
    return this.info.expiresAt;
  }

  /** Return the paths that differ from another snapshot, a sandbox (default: its own) or an image. */
  async changes({ to, limit, signal }: CallOptions & { to?: string; limit?: number } = {}): Promise<Wire<"SnapshotDiff">> {
    const query = { ...(to !== undefined && { to }), ...(limit !== undefined && { limit }) };
    return this.api.json("get", `${SNAPSHOT}/changes`, { path: { snapshot: this.id }, query, signal });
  }
  /** Yield it as an OCI archive. */
  export(options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.api.bytes("get", `${SNAPSHOT}/export`, { path: { snapshot: this.id }, ...options }, TAR);
  }
  async delete(options: CallOptions = {}): Promise<void> {
    await this.api.act("delete", SNAPSHOT, { path: { snapshot: this.id }, ...options });
  }
}

export class Snapshots {
  constructor(private readonly api: Api) {}

  async list({ kind, key, signal }: CallOptions & { kind?: "auto" | "build" | "kept"; key?: string } = {}): Promise<Snapshot[]> {
    const query = { ...(kind && { kind }), ...(key && { key }) };
    const { snapshots } = await this.api.json("get", "/v1/snapshots", { query, signal });
    return snapshots.map((info) => new Snapshot(this.api, info));
  }
  async get(snapshot: string, options: CallOptions = {}): Promise<Snapshot> {
    return new Snapshot(this.api, await this.api.json("get", SNAPSHOT, { path: { snapshot }, ...options }));
  }
  async import(archive: Source, { name, signal }: CallOptions & { name?: string } = {}): Promise<Wire<"ImportedSnapshot">> {
    const query = name === undefined ? {} : { name };
    return this.api.json("post", "/v1/snapshots/import", { query, content: { source: archive, type: TAR }, signal });
  }
}

/** A directory that outlives sandboxes. */
export class Volume {
  constructor(private readonly api: Api, readonly info: Wire<"VolumeInfo">) {}

  get id(): string {
    return this.info.id;
  }
  get name(): string {
    return this.info.name;
  }
  /** The volume as a mount that cannot be written to. */
  get readOnly(): string {
    return `${this.id}:ro`;
  }
  private get path(): { volume: string } {
    return { volume: this.id };
  }

  /** Create a read-only copy. */
  async snapshot(name: string, options: CallOptions = {}): Promise<Volume> {
    return new Volume(this.api, await this.api.json("post", `${VOLUME}/snapshot`, { path: this.path, body: { name }, ...options }));
  }
  /** Create a writable copy. */
  async clone(name: string, { size, signal }: CallOptions & { size?: string | number } = {}): Promise<Volume> {
    const body = { name, size: size ?? null };
    return new Volume(this.api, await this.api.json("post", `${VOLUME}/clone`, { path: this.path, body, signal }));
  }
  export(options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.api.bytes("get", `${VOLUME}/export`, { path: this.path, ...options }, TAR);
  }
  async delete(options: CallOptions = {}): Promise<void> {
    await this.api.act("delete", VOLUME, { path: this.path, ...options });
  }
}

export class Volumes {
  constructor(private readonly api: Api) {}

  async create(name: string, { size, signal }: CallOptions & { size?: string | number } = {}): Promise<Volume> {
    return new Volume(this.api, await this.api.json("post", "/v1/volumes", { body: { name, size: size ?? null }, signal }));
  }
  async list(options: CallOptions = {}): Promise<Volume[]> {
    const { volumes } = await this.api.json("get", "/v1/volumes", options);
    return volumes.map((info) => new Volume(this.api, info));
  }
  async get(volume: string, options: CallOptions = {}): Promise<Volume> {
    return new Volume(this.api, await this.api.json("get", VOLUME, { path: { volume }, ...options }));
  }
  async import(name: string, archive: Source, { size, signal }: CallOptions & { size?: string } = {}): Promise<Wire<"ImportedVolume">> {
    const query = { name, ...(size !== undefined && { size }) };
    return this.api.json("post", "/v1/volumes/import", { query, content: { source: archive, type: TAR }, signal });
  }
}

interface WithProgress extends CallOptions {
  onProgress?: (progress: Wire<"Progress">) => void;
}

/** Read the lines of a pull, a build or a verification to their end. */
async function finish(lines: AsyncIterable<Record<string, unknown>>, onProgress: WithProgress["onProgress"]): Promise<Wire<"ImageLine">> {
  let last: Wire<"ImageLine"> | null = null;
  for await (const line of lines) {
    last = fromWire(line) as Wire<"ImageLine">;
    if (last.progress) onProgress?.(last.progress);
  }
  if (last === null) throw new SkerryError("the server sent no result");
  return last;
}

export class Images {
  constructor(private readonly api: Api) {}

  async list(options: CallOptions = {}): Promise<Wire<"ImageInfo">[]> {
    return (await this.api.json("get", "/v1/images", options)).images;
  }
  async get(name: string, options: CallOptions = {}): Promise<Wire<"ImageInfo">> {
    return this.api.json("get", "/v1/images/{name}", { path: { name }, ...options });
  }
  /** Build one of Skerry's own images, like `base` or `data`. */
  async build(name = "base", { rebuild = false, onProgress, signal }: WithProgress & { rebuild?: boolean } = {}): Promise<Wire<"ImageInfo">> {
    const end = await finish(this.api.lines("post", "/v1/images", { body: { name, rebuild }, signal }), onProgress);
    return end.image as Wire<"ImageInfo">;
  }
  /** Make a snapshot an image for all users. */
  async fromSnapshot(snapshot: string, name: string, options: CallOptions = {}): Promise<Wire<"ImageInfo">> {
    return (await this.api.json("post", "/v1/images", { body: { snapshot, name, rebuild: false }, ...options })) as Wire<"ImageInfo">;
  }
  /** Pull an image from a registry. */
  async pull(reference: string, { onProgress, signal, ...given }: WithProgress & Partial<Omit<Wire<"PullRequest">, "reference">> = {}): Promise<Wire<"ImageInfo">> {
    const body = { reference, ...given } as Wire<"PullRequest">;
    return (await finish(this.api.lines("post", "/v1/images/pull", { body, signal }), onProgress)).image as Wire<"ImageInfo">;
  }
  /** Remove layers that nothing uses; with `all`, also unused images. */
  async prune({ all = false, signal }: CallOptions & { all?: boolean } = {}): Promise<Wire<"PruneResult">> {
    return this.api.json("post", "/v1/images/prune", { body: { all }, signal });
  }
  /** Compare the stored layers with their digests. */
  async verify({ name, onProgress, signal }: WithProgress & { name?: string } = {}): Promise<Wire<"VerifyResult">> {
    const body = name === undefined ? {} : { name };
    return (await finish(this.api.lines("post", "/v1/images/verify", { body, signal }), onProgress)).verified as Wire<"VerifyResult">;
  }
  async remove(name: string, options: CallOptions = {}): Promise<void> {
    await this.api.act("delete", "/v1/images/{name}", { path: { name }, ...options });
  }
  async import(name: string, archive: Source, { replace = false, signal }: CallOptions & { replace?: boolean } = {}): Promise<Wire<"ImportedImage">> {
    return this.api.json("post", "/v1/images/import", { query: { name, replace }, content: { source: archive, type: TAR }, signal });
  }
  /** Yield an image as an OCI archive. */
  export(name: string, options: CallOptions = {}): AsyncGenerator<Bytes> {
    return this.api.bytes("get", "/v1/images/export", { query: { name }, ...options }, TAR);
  }
  /** Install the tools of a language into the image of code runs. */
  async installLanguage(language: string, { onProgress, signal }: WithProgress = {}): Promise<Wire<"ImageInfo">> {
    const lines = this.api.lines("post", "/v1/languages/{language}/install", { path: { language }, signal });
    return (await finish(lines, onProgress)).image as Wire<"ImageInfo">;
  }
}
