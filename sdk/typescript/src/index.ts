/** The TypeScript SDK of Skerry: isolated Linux machines for AI agents. */

export { Api, type ApiOptions, type CallOptions, type Schemas, type Wire } from "./api.js";
export { Client, Pool, Tokens } from "./client.js";
export { Code, type CodeEvent, type CodeOptions, type CodeResult, CodeValue, Context } from "./code.js";
export * from "./errors.js";
export { type FileEvent, type FileInfo, Files, Watch } from "./files.js";
export type { Forward } from "./forward.js";
export { type NetworkAttempt, Preview, Previews, SandboxNetwork } from "./network.js";
export { Process, Processes, type RunningCommand, type RunOptions, type SpawnOptions } from "./processes.js";
export { Audit, Budgets, Records, Webhooks } from "./records.js";
export type { Command, Output, Result } from "./results.js";
export { type Changes, type Hunk, type ReviewEvent, SandboxReview } from "./review.js";
export { type CreateOptions, Git, Sandbox, type SandboxInfo } from "./sandbox.js";
export { Session, type SessionOptions, Sessions } from "./sessions.js";
export { Images, Snapshot, Snapshots, Volume, Volumes } from "./storage.js";
export { Terminal } from "./terminal.js";
export type { Bytes, Source } from "./transport.js";
