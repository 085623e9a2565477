/** The tools of the adapters: what a model may do in a sandbox. */

import { z } from "zod";
import type { Result } from "../results.js";
import type { Sandbox } from "../sandbox.js";

const NO_OUTPUT = "(no output)";
const MAX_TEXT = 30_000; // characters of a tool's answer: more fills the context of a model

export interface SandboxTool<Input extends z.ZodObject = z.ZodObject> {
  name: string;
  description: string;
  input: Input;
  execute(input: z.infer<Input>, signal?: AbortSignal): Promise<string>;
}

function shorten(text: string): string {
  if (text.length <= MAX_TEXT) return text;
  const half = MAX_TEXT / 2;
  return `${text.slice(0, half)}\n[${text.length - MAX_TEXT} characters left out]\n${text.slice(-half)}`;
}

function describe(result: Result): string {
  const end = result.timedOut ? "timed out" : `exit code ${result.exitCode ?? `none (${result.signal})`}`;
  const parts = [result.stdout, result.stderr && `stderr:\n${result.stderr}`, result.ok ? "" : end, result.hint && `hint: ${result.hint}`];
  return shorten(parts.filter(Boolean).join("\n")) || NO_OUTPUT;
}

const tool = <Input extends z.ZodObject>(one: SandboxTool<Input>): SandboxTool => one as unknown as SandboxTool;

/** Return the tools for one sandbox. An error of a tool is its answer, so that the model can correct itself. */
export function definitions(sandbox: Sandbox): SandboxTool[] {
  return [
    tool({
      name: "bash",
      description: "Run a shell command in the sandbox and return its output. The working directory is /workspace.",
      input: z.object({ command: z.string(), timeout: z.number().positive().max(3600).optional().describe("seconds; default: 300") }),
      execute: async ({ command, timeout }, signal) => describe(await sandbox.run(command, { timeout: timeout ?? 300, ...(signal && { signal }) })),
    }),
    tool({
      name: "run_code",
      description: "Run code in the sandbox and return its output and value. Variables last between calls of one language.",
      input: z.object({ code: z.string(), language: z.string().optional().describe("default: python") }),
      execute: async ({ code, language }, signal) => {
        const result = await sandbox.code.run(code, { ...(language && { language }), ...(signal && { signal }) });
        const error = result.error === null ? "" : `${result.error.name}: ${result.error.message}`;
        const value = result.text === null ? "" : `value: ${shorten(result.text)}`;
        const output = describe({ ...result, stderr: result.stderr || error });
        return value && output === NO_OUTPUT ? value : [output, value].filter(Boolean).join("\n");
      },
    }),
    tool({
      name: "read_file",
      description: "Read a text file of the sandbox.",
      input: z.object({ path: z.string() }),
      execute: async ({ path }, signal) => shorten(await sandbox.files.readText(path, signal ? { signal } : {})),
    }),
    tool({
      name: "write_file",
      description: "Write a text file in the sandbox; directories above it are created.",
      input: z.object({ path: z.string(), content: z.string() }),
      execute: async ({ path, content }, signal) => {
        const info = await sandbox.files.write(path, content, { parents: true, ...(signal && { signal }) });
        return `wrote ${info.path} (${info.size} bytes)`;
      },
    }),
    tool({
      name: "edit_file",
      description: "Replace an exact text, which must occur once, in a file of the sandbox.",
      input: z.object({ path: z.string(), old: z.string(), new: z.string() }),
      execute: async (input, signal) => {
        await sandbox.files.replace(input.path, input.old, input.new, signal ? { signal } : {});
        return `edited ${input.path}`;
      },
    }),
    tool({
      name: "list_files",
      description: "List a directory of the sandbox.",
      input: z.object({ path: z.string().optional() }),
      execute: async ({ path }, signal) => {
        const { entries } = await sandbox.files.list(path ?? ".", signal ? { signal } : {});
        return shorten(entries.map((entry) => (entry.type === "directory" ? `${entry.name}/` : entry.name)).join("\n")) || "(empty)";
      },
    }),
  ];
}

/** Run a tool; return an error of Skerry as text. */
export async function answer(one: SandboxTool, input: unknown, signal?: AbortSignal): Promise<string> {
  try {
    return await one.execute(one.input.parse(input), signal);
  } catch (error) {
    signal?.throwIfAborted();
    return `error: ${error instanceof Error ? error.message : String(error)}`;
  }
}
