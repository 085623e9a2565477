/** The calls of docs/guides/typescript.md for agent frameworks, with a scripted model. */

import { Agent } from "@mastra/core/agent";
import { generateText, isStepCount } from "ai";
import { MockLanguageModelV3, MockLanguageModelV4 } from "ai/test";
import { describe, expect, it } from "vitest";
import { Sandbox } from "../src/index.js";
import { sandboxTools } from "../src/adapters/ai-sdk.js";
import { sandboxTools as mastraTools } from "../src/adapters/mastra.js";
import { unix } from "./server.js";

const CALLS = [
  { toolName: "write_file", input: { path: "src/a.py", content: "print(6 * 6)\n" } },
  { toolName: "edit_file", input: { path: "src/a.py", old: "6 * 6", new: "6 * 7" } },
  { toolName: "bash", input: { command: "python3 src/a.py; echo oops >&2; exit 3" } },
  { toolName: "run_code", input: { code: "1 + 1" } },
  { toolName: "read_file", input: { path: "missing" } },
  { toolName: "list_files", input: {} },
];
const ANSWERS = ["wrote src/a.py (13 bytes)", "edited src/a.py", "42\n\nstderr:\noops\n\nexit code 3", "value: 2", "error: ", "src/"];
const USAGE = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };

/** A model that makes the scripted calls one after another, and records the answers. */
function script(): { step: () => never; prompts: unknown[] } {
  let at = 0;
  const prompts: unknown[] = [];
  const step = (({ prompt }: { prompt: unknown } = { prompt: null }) => {
    prompts.push(prompt);
    const call = CALLS[at++];
    const content = call === undefined ? [{ type: "text", text: "done" }] : [{ type: "tool-call", toolCallId: `c${at}`, toolName: call.toolName, input: JSON.stringify(call.input) }];
    const unified = call === undefined ? "stop" : "tool-calls";
    return { content, finishReason: { unified, raw: unified }, usage: USAGE, warnings: [] };
  }) as never;
  return { step, prompts };
}

/** Every text in a conversation. */
function texts(value: unknown): string[] {
  if (typeof value === "string") return [value];
  return typeof value === "object" && value !== null ? Object.values(value).flatMap(texts) : [];
}

function expectAnswers(prompts: unknown[]): void {
  const said = texts(prompts.at(-1));
  for (const answer of ANSWERS) expect(said.some((text) => text.startsWith(answer)), `${answer} in ${JSON.stringify(said)}`).toBe(true);
}

describe("adapters", () => {
  it("give a model of the AI SDK a sandbox", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const { step, prompts } = script();
    const model = new MockLanguageModelV4({ doGenerate: async (options: never) => (step as (o: never) => never)(options) });
    const { text } = await generateText({ model, tools: sandboxTools(sandbox), prompt: "go", stopWhen: isStepCount(10) });
    expect(text).toBe("done");
    expectAnswers(prompts);
  });

  it("give an agent of Mastra a sandbox", async () => {
    await using sandbox = await Sandbox.create({ server: unix });
    const { step, prompts } = script();
    const model = new MockLanguageModelV3({ doGenerate: async (options: never) => (step as (o: never) => never)(options) });
    const agent = new Agent({ id: "coder", name: "coder", instructions: "work", model: model as never, tools: mastraTools(sandbox) });
    const { text } = await agent.generate("go", { maxSteps: 10 });
    expect(text).toBe("done");
    expectAnswers(prompts);
  });
});
