/** The address of a server: an argument, SKERRY_SERVER, or the unix socket of this host's server. */

import { InvalidRequest } from "./errors.js";

export interface Address {
  /** The origin of all requests. */
  url: string;
  /** The path of a unix socket, or null for TCP. */
  socket: string | null;
  token: string | null;
}

const HINT = "write it like unix:///run/skerry/api.sock or https://host:7070";

function environment(name: string): string | undefined {
  const runtime = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return runtime.process?.env?.[name] || undefined;
}

export function parseAddress(text: string, token: string | null): Address {
  if (token !== null && !/^[\x21-\x7e]+$/.test(token)) throw new InvalidRequest("token: not a token", { hint: "it looks like skt_…" });
  const invalid = () => new InvalidRequest(`server: ${JSON.stringify(text)} is not an address`, { hint: HINT });
  if (/[\s\x00-\x1f\x7f]/.test(text)) throw invalid();
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw invalid();
  }
  if (url.search || url.hash || url.username || url.password) throw invalid();
  if (url.protocol === "unix:" && !url.host && url.pathname.startsWith("/")) {
    return { url: "http://localhost", socket: decodeURIComponent(url.pathname), token };
  }
  if ((url.protocol === "http:" || url.protocol === "https:") && (url.pathname === "/" || url.pathname === "")) {
    return { url: url.origin, socket: null, token };
  }
  throw invalid();
}

/** Return the socket of this host's server, whose directory is named after the state directory. */
async function ownSocket(): Promise<string> {
  const { createHash } = await import("node:crypto");
  const { realpathSync } = await import("node:fs");
  let stateDir = environment("SKERRY_STATE_DIR") ?? "/var/lib/skerry";
  try {
    stateDir = realpathSync(stateDir);
  } catch {
    // not made yet: there is no server, which the connection reports
  }
  const digest = createHash("sha256").update(stateDir).digest();
  return `/run/skerry/${base32(digest).slice(0, 10)}/api.sock`;
}

function base32(bytes: Uint8Array): string {
  const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, "0")).join("");
  return (bits.match(/.{5}/g) ?? []).map((five) => "abcdefghijklmnopqrstuvwxyz234567"[Number.parseInt(five, 2)]).join("");
}

export async function resolveAddress(server?: string, token?: string): Promise<Address> {
  const named = server ?? environment("SKERRY_SERVER");
  const secret = token ?? environment("SKERRY_TOKEN") ?? null;
  if (named !== undefined) return parseAddress(named, secret);
  if (typeof (globalThis as { document?: unknown }).document !== "undefined") {
    return parseAddress((globalThis as unknown as { location: { origin: string } }).location.origin, secret);
  }
  return { url: "http://localhost", socket: await ownSocket(), token: secret };
}
