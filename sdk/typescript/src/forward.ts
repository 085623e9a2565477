/** Forwards a port of this machine to one inside (Node.js, Bun, Deno). */

import type { Server, Socket as TcpSocket } from "node:net";
import type { Sandbox } from "./sandbox.js";

export interface Forward {
  readonly port: number;
  close(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function forwardPort(sandbox: Sandbox, remote: number, { local = 0, host = "127.0.0.1" }: { local?: number; host?: string }): Promise<Forward> {
  const { createServer } = await import("node:net");
  const open = new Set<TcpSocket>();
  const server = createServer({ allowHalfOpen: true }, (connection) => {
    open.add(connection);
    connection.on("close", () => open.delete(connection));
    void relay(sandbox, remote, connection).catch(() => connection.resetAndDestroy());
  });
  await new Promise<void>((resolve, reject) => server.once("error", reject).listen(local, host, resolve));
  const close = async (): Promise<void> => {
    for (const connection of open) connection.resetAndDestroy();
    await new Promise<void>((resolve) => server.close(() => resolve()));
  };
  return { port: portOf(server), close, [Symbol.asyncDispose]: close };
}

function portOf(server: Server): number {
  const address = server.address();
  return typeof address === "object" && address !== null ? address.port : 0;
}

async function relay(sandbox: Sandbox, remote: number, connection: TcpSocket): Promise<void> {
  connection.on("error", () => connection.destroy());
  const socket = await sandbox.api.socket("/v1/sandboxes/{ref}/ports/{port}/connect", { path: { ref: sandbox.id, port: String(remote) } });
  connection.on("close", () => socket.close());
  const sending = (async () => {
    for await (const part of connection) await socket.send(new Uint8Array(part as Uint8Array));
    await socket.send("eof");
  })();
  sending.catch(() => socket.close());
  for await (const message of socket) {
    if (message === "eof") connection.end();
    else if (typeof message !== "string" && !connection.write(message)) await new Promise((resolve) => connection.once("drain", resolve).once("close", resolve));
  }
  connection.end();
}
