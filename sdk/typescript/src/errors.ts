/** Errors, one class per wire code. */

import type { Result } from "./results.js";

interface ErrorDetails {
  hint?: string | null;
  details?: Record<string, unknown>;
  cause?: unknown;
}

/** The root of all errors. `code` is stable; `hint` names the next step. */
export class SkerryError extends Error {
  static readonly code: string = "internal";
  readonly code: string;
  readonly hint: string | null;
  readonly details: Record<string, unknown>;

  constructor(message: string, { hint, details, cause }: ErrorDetails = {}) {
    super(hint ? `${message}\nhint: ${hint}` : message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = new.target.code;
    this.hint = hint ?? null;
    this.details = details ?? {};
  }
}

export class InvalidRequest extends SkerryError {
  static override readonly code: string = "invalid_request";
}
export class NotFound extends SkerryError {
  static override readonly code: string = "not_found";
}
export class Conflict extends SkerryError {
  static override readonly code: string = "conflict";
}
/** The sandbox has accepted changes that were not applied; it is deleted only with `force`. */
export class UnappliedChanges extends Conflict {
  static override readonly code: string = "unapplied_changes";
}
/** A command ended non-zero, with `check: true`. */
export class CommandFailed extends SkerryError {
  static override readonly code: string = "command_failed";
  result: Result | null = null;
}
export class OutOfMemory extends CommandFailed {
  static override readonly code: string = "out_of_memory";
}
export class NetworkDenied extends CommandFailed {
  static override readonly code: string = "network_denied";
}
/** A command timed out, with `check: true`, or a condition was not met in time. */
export class CommandTimeout extends SkerryError {
  static override readonly code: string = "command_timeout";
  result: Result | null = null;
}
export class PermissionDenied extends SkerryError {
  static override readonly code: string = "permission_denied";
}
export class QuotaExceeded extends SkerryError {
  static override readonly code: string = "quota_exceeded";
}
export class BudgetExceeded extends QuotaExceeded {
  static override readonly code: string = "budget_exceeded";
}
export class SandboxUnavailable extends SkerryError {
  static override readonly code: string = "sandbox_unavailable";
}
export class ServerUnreachable extends SkerryError {
  static override readonly code: string = "server_unreachable";
}
export class RegistryError extends SkerryError {
  static override readonly code: string = "registry_error";
}
export class ToolchainMissing extends SkerryError {
  static override readonly code: string = "toolchain_missing";
}
export class HostUnsupported extends SkerryError {
  static override readonly code: string = "host_unsupported";
}
export class AuditUnavailable extends SkerryError {
  static override readonly code: string = "audit_unavailable";
}
export class FileError extends SkerryError {
  static override readonly code: string = "file_error";
}
export class FileNotFound extends FileError {
  static override readonly code: string = "file_not_found";
}
export class FileExists extends FileError {
  static override readonly code: string = "file_exists";
}
export class FileIsDirectory extends FileError {
  static override readonly code: string = "file_is_directory";
}
export class FileNotDirectory extends FileError {
  static override readonly code: string = "file_not_directory";
}
export class FilePermissionDenied extends FileError {
  static override readonly code: string = "file_permission_denied";
}

export const ERROR_CLASSES = [
  AuditUnavailable, BudgetExceeded, CommandFailed, CommandTimeout, Conflict, FileError, FileExists, FileIsDirectory,
  FileNotDirectory, FileNotFound, FilePermissionDenied, HostUnsupported, InvalidRequest, NetworkDenied, NotFound,
  OutOfMemory, PermissionDenied, QuotaExceeded, RegistryError, SandboxUnavailable, ServerUnreachable, ToolchainMissing,
  UnappliedChanges,
] as const; // prettier-ignore

const BY_CODE = new Map<string, new (message: string, details?: ErrorDetails) => SkerryError>(
  ERROR_CLASSES.map((one) => [one.code, one]),
);
const BY_STATUS: Record<number, string> = {
  400: "invalid_request", 401: "permission_denied", 403: "permission_denied", 404: "not_found", 409: "conflict",
  429: "quota_exceeded", 501: "host_unsupported", 503: "sandbox_unavailable",
}; // prettier-ignore

export function errorForCode(code: string, message: string, details: ErrorDetails = {}): SkerryError {
  return new (BY_CODE.get(code) ?? SkerryError)(message, details);
}

interface WireError {
  code: string;
  message: string;
  hint?: string | null;
  details?: Record<string, unknown>;
}

/** Return the error of `{"error": {…}}`, or null if the value has another shape. */
export function wireError(value: unknown): SkerryError | null {
  const error = (value as { error?: Partial<WireError> | null } | null)?.error;
  if (typeof error !== "object" || error === null) return null;
  if (typeof error.code !== "string" || typeof error.message !== "string") return null;
  return errorForCode(error.code, error.message, { hint: error.hint ?? null, details: error.details ?? {} });
}

/** Return the error of a failed response, also if a proxy in between sent it. */
export function responseError(status: number, body: string): SkerryError {
  try {
    const error = wireError(JSON.parse(body));
    if (error !== null) return error;
  } catch {
    // not JSON
  }
  const excerpt = body.slice(0, 200).trim();
  return errorForCode(BY_STATUS[status] ?? "internal", `the server answered ${status}${excerpt && `: ${excerpt}`}`);
}
