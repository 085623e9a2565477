/**
 * Tools for the Vercel AI SDK.
 *
 *     import { sandboxTools } from "skerry/ai-sdk";
 *     const { text } = await generateText({ model, tools: sandboxTools(sandbox), prompt, stopWhen: stepCountIs(10) });
 */

import { type Tool, tool } from "ai";
import type { Sandbox } from "../sandbox.js";
import { answer, definitions } from "./definitions.js";

export function sandboxTools(sandbox: Sandbox): Record<string, Tool> {
  return Object.fromEntries(
    definitions(sandbox).map((one) => [
      one.name,
      tool({
        description: one.description,
        inputSchema: one.input,
        execute: (input: unknown, { abortSignal }: { abortSignal?: AbortSignal | undefined }) => answer(one, input, abortSignal),
      }) as unknown as Tool,
    ]),
  );
}
