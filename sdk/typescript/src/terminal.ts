/** The terminal of a process, over a WebSocket. */

import type { Wire } from "./api.js";
import { SkerryError, wireError } from "./errors.js";
import { fromWire } from "./names.js";
import type { Bytes, Socket } from "./transport.js";

/** An open terminal: iterate over its output, `send` input. `exit` has the result once the process has ended. */
export class Terminal implements AsyncIterable<Bytes> {
  process: Wire<"ProcessInfo"> | null = null;
  exit: Wire<"RunResult"> | null = null;
  /** The position of the next byte, for `since` after a disconnect. */
  offset = 0;
  private failure: SkerryError | null = null;

  constructor(private readonly socket: Socket) {}

  async *[Symbol.asyncIterator](): AsyncGenerator<Bytes> {
    for await (const message of this.socket) {
      if (typeof message === "string") this.take(JSON.parse(message) as Record<string, unknown>);
      else {
        this.offset += message.length;
        yield message;
      }
    }
    if (this.exit === null && this.failure !== null) throw this.failure;
  }

  /** Type: bytes, or text as UTF-8. */
  async send(input: string | Bytes): Promise<void> {
    await this.socket.send(typeof input === "string" ? new TextEncoder().encode(input) : input);
  }

  async resize(cols: number, rows: number): Promise<void> {
    await this.socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  async signal(name: string): Promise<void> {
    await this.socket.send(JSON.stringify({ type: "signal", signal: name.toUpperCase().replace(/^SIG/, "") }));
  }

  /** Leave the terminal. The process continues. */
  close(): void {
    this.socket.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  private take(message: Record<string, unknown>): void {
    if (message.type === "started") {
      this.process = fromWire(message.process) as Wire<"ProcessInfo">;
      this.offset = message.offset as number;
    } else if (message.type === "missing") this.offset += message.missing as number;
    else if (message.type === "exit") this.exit = fromWire(message) as Wire<"RunResult">;
    else if (message.type === "error") this.failure = wireError(message);
  }
}
