/** `sandbox.code`: run code and get its values. */

import type { CallOptions, Wire } from "./api.js";
import { CommandFailed, CommandTimeout } from "./errors.js";
import { fromWire } from "./names.js";
import { inputOf } from "./processes.js";
import { decodeBase64, type Output, OutputCollector, OutputDecoder, type Result, type RunEnd } from "./results.js";
import type { Sandbox } from "./sandbox.js";
import type { Bytes } from "./transport.js";

const CODE = "/v1/sandboxes/{ref}/code";
const CONTEXTS = "/v1/sandboxes/{ref}/contexts";
const CONTEXT = "/v1/sandboxes/{ref}/contexts/{context}";

export interface CodeOptions extends CallOptions {
  /** Default: python. */
  language?: string;
  context?: string | Context;
  /** Run in a new memory that is discarded. */
  fresh?: boolean;
  stdin?: string | Bytes;
  timeout?: number | null;
  cwd?: string;
  env?: Record<string, string | null>;
  user?: string;
  /** Raise an error if the code fails. */
  check?: boolean;
  onOutput?: (piece: Output) => void;
}

/** A value of the code, or a picture that it drew, in all its forms by MIME type. */
export class CodeValue {
  readonly data: Record<string, string>;
  /** The value of the last expression. */
  readonly main: boolean;
  /** Forms that were shortened or omitted for their size. */
  readonly cut: string[];

  constructor(value: { data: Record<string, string>; main: boolean; cut: string[] }) {
    [this.data, this.main, this.cut] = [value.data, value.main, value.cut];
  }
  get text(): string | null {
    return this.data["text/plain"] ?? null;
  }
  get html(): string | null {
    return this.data["text/html"] ?? null;
  }
  get markdown(): string | null {
    return this.data["text/markdown"] ?? null;
  }
  get svg(): string | null {
    return this.data["image/svg+xml"] ?? null;
  }
  get latex(): string | null {
    return this.data["text/latex"] ?? null;
  }
  get javascript(): string | null {
    return this.data["application/javascript"] ?? null;
  }
  get png(): Bytes | null {
    return this.picture("image/png");
  }
  get jpeg(): Bytes | null {
    return this.picture("image/jpeg");
  }
  get json(): unknown {
    return this.parsed("application/json");
  }
  /** A figure as data: its axes and their series. */
  get chart(): unknown {
    return this.parsed("application/vnd.skerry.chart+json");
  }
  private picture(form: string): Bytes | null {
    const value = this.data[form];
    return value === undefined ? null : decodeBase64(value);
  }
  private parsed(form: string): unknown {
    const value = this.data[form];
    return value === undefined ? null : (JSON.parse(value) as unknown);
  }
}

export type CodeResult = Omit<Wire<"CodeEnd">, keyof RunEnd | "results"> & Result & {
  /** Its values, in order. */
  results: CodeValue[];
  /** The text of the last expression's value. */
  text: string | null;
};

/** `stdout`, `stderr`, `result` and `error` while the code runs, then `end`. */
export type CodeEvent =
  | { type: "started"; id: string }
  | { type: "stdout" | "stderr"; output: Output }
  | { type: "result"; result: CodeValue }
  | { type: "error"; error: NonNullable<Wire<"CodeEnd">["error"]> }
  | { type: "end"; end: CodeResult };

export class Code {
  constructor(private readonly sandbox: Sandbox) {}

  /** Run code to its end. Without `context`, variables last between calls of one language. Aborting interrupts it. */
  async run(code: string, options: CodeOptions = {}): Promise<CodeResult> {
    for await (const event of this.stream(code, options)) {
      if (event.type === "stdout" || event.type === "stderr") options.onOutput?.(event.output);
      if (event.type === "end") return options.check ? checked(event.end) : event.end;
    }
    throw new CommandFailed("the code's stream ended before the code did");
  }

  /** Run code and yield its events. Leaving early interrupts the code. */
  async *stream(code: string, options: Omit<CodeOptions, "check" | "onOutput"> = {}): AsyncGenerator<CodeEvent> {
    const { language, context, fresh = false, stdin, timeout = 300, cwd, env = {}, user, signal } = options;
    const name = typeof context === "object" ? context.name : context;
    const body = {
      code, language: language ?? null, context: name ?? null, fresh, timeout, env, cwd: cwd ?? null, user: user ?? null,
      ...inputOf(stdin),
    } as Wire<"CodeRequest">; // prettier-ignore
    const decoder = new OutputDecoder((value) => fromWire<RunEnd>(value) as RunEnd);
    const collector = new OutputCollector();
    const results: CodeValue[] = [];
    for await (const line of this.sandbox.api.lines("post", CODE, { path: { ref: this.sandbox.id }, body, signal })) {
      const output = decoder.take(line);
      if (output !== null) {
        collector.add(output);
        yield { type: output.stream, output };
      }
      if (line.started !== undefined && decoder.process !== null) yield { type: "started", id: decoder.process.id };
      if (line.result !== undefined) {
        const result = new CodeValue(line.result as CodeValue);
        results.push(result);
        yield { type: "result", result };
      }
      if (line.exit !== undefined) {
        const end = resultOfCode(fromWire(line.exit) as Wire<"CodeEnd">, collector, results);
        if (end.error !== null) yield { type: "error", error: end.error };
        yield { type: "end", end };
      }
    }
  }

  /** Create a context; the default name is generated. */
  async context(language = "python", { name, cwd, env = {}, user, signal }: CallOptions & { name?: string; cwd?: string; env?: Record<string, string | null>; user?: string } = {}): Promise<Context> {
    const body = { language, name: name ?? null, cwd: cwd ?? null, env, user: user ?? null };
    return new Context(this.sandbox, await this.sandbox.api.json("post", CONTEXTS, { path: { ref: this.sandbox.id }, body, signal }));
  }

  /** Return an existing context. The default context of a language has the language's name. */
  async get(context: string, options: CallOptions = {}): Promise<Context> {
    return new Context(this.sandbox, await this.sandbox.api.json("get", CONTEXT, { path: { ref: this.sandbox.id, context }, ...options }));
  }

  async contexts(options: CallOptions = {}): Promise<Context[]> {
    const { contexts } = await this.sandbox.api.json("get", CONTEXTS, { path: { ref: this.sandbox.id }, ...options });
    return contexts.map((info) => new Context(this.sandbox, info));
  }

  /** Return the languages that the server knows, with the versions in this sandbox. */
  async languages(options: CallOptions = {}): Promise<Wire<"LanguageInfo">[]> {
    return (await this.sandbox.api.json("get", "/v1/sandboxes/{ref}/languages", { path: { ref: this.sandbox.id }, ...options })).languages;
  }
}

function resultOfCode(end: Wire<"CodeEnd">, collector: OutputCollector, results: CodeValue[]): CodeResult {
  const result = collector.result(end, null);
  const ok = result.ok && end.error === null;
  return { ...end, ...result, ok, results, text: results.find((one) => one.main)?.text ?? null } as CodeResult;
}

function checked(result: CodeResult): CodeResult {
  if (result.ok) return result;
  const message = result.error === null ? `exit code ${result.exitCode}` : `${result.error.name}: ${result.error.message}`;
  const error = result.timedOut ? new CommandTimeout("the code timed out", { hint: result.hint }) : new CommandFailed(message, { hint: result.hint });
  error.result = result;
  throw error;
}

/** A memory for one language. Its runs are sequential. */
export class Context {
  constructor(private readonly sandbox: Sandbox, private last: Wire<"ContextInfo">) {}

  get name(): string {
    return this.last.name;
  }
  get language(): string {
    return this.last.language;
  }
  get cachedInfo(): Wire<"ContextInfo"> {
    return this.last;
  }
  private get path(): { ref: string; context: string } {
    return { ref: this.sandbox.id, context: this.name };
  }

  async info(options: CallOptions = {}): Promise<Wire<"ContextInfo">> {
    this.last = await this.sandbox.api.json("get", CONTEXT, { path: this.path, ...options });
    return this.last;
  }
  async run(code: string, options: Omit<CodeOptions, "context" | "language" | "fresh" | "cwd" | "user"> = {}): Promise<CodeResult> {
    return this.sandbox.code.run(code, { ...options, context: this.name });
  }
  stream(code: string, options: Pick<CodeOptions, "stdin" | "timeout" | "signal" | "env"> = {}): AsyncGenerator<CodeEvent> {
    return this.sandbox.code.stream(code, { ...options, context: this.name });
  }
  /** Interrupt the running code; the memory stays. */
  async interrupt(options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${CONTEXT}/interrupt`, { path: this.path, ...options });
  }
  /** Restart with an empty memory. */
  async restart(options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("post", `${CONTEXT}/restart`, { path: this.path, ...options });
  }
  /** Delete the context and end its code. */
  async delete(options: CallOptions = {}): Promise<void> {
    await this.sandbox.api.act("delete", CONTEXT, { path: this.path, ...options });
  }
}
