/**
 * Tools for Mastra.
 *
 *     import { sandboxTools } from "skerry/mastra";
 *     const agent = new Agent({ id: "coder", name: "coder", instructions, model, tools: sandboxTools(sandbox) });
 */

import { createTool } from "@mastra/core/tools";
import type { Sandbox } from "../sandbox.js";
import { answer, definitions } from "./definitions.js";

export function sandboxTools(sandbox: Sandbox): Record<string, ReturnType<typeof createTool>> {
  return Object.fromEntries(
    definitions(sandbox).map((one) => [
      one.name,
      createTool({
        id: one.name,
        description: one.description,
        inputSchema: one.input,
        execute: (input: unknown, context?: { abortSignal?: AbortSignal }) => answer(one, input, context?.abortSignal),
      } as never) as unknown as ReturnType<typeof createTool>,
    ]),
  );
}
