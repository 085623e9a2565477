/** Runs the examples of docs/guides/typescript.md and compares their output with the page. */

import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import ts from "typescript";
import { describe, expect, it } from "vitest";

const PAGE = new URL("../../../docs/guides/typescript.md", import.meta.url);
const BLOCK = /<!-- run by: tests\/sdk\/test_typescript\.py -->\n```typescript\n(.*?)```\n\n```text\n(.*?)```/gs;
const ROOT = new URL("..", import.meta.url).pathname;

describe("the guide", () => {
  const blocks = [...readFileSync(PAGE, "utf8").matchAll(BLOCK)];

  it("has examples", () => {
    expect(blocks.length).toBeGreaterThanOrEqual(5);
  });

  it.each(blocks.map(([, program, output], number) => [number + 1, program, output]))("runs example %i as printed", async (_, program, output) => {
    const place = mkdtempSync(join(ROOT, "node_modules/.guide-"));
    try {
      const { outputText } = ts.transpileModule(program as string, { compilerOptions: { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext } });
      writeFileSync(join(place, "example.mjs"), outputText.replaceAll('"skerry"', JSON.stringify(join(ROOT, "dist/index.js"))));
      const env = { ...process.env, SKERRY_SERVER: process.env.SKERRY_TEST_URL, SKERRY_TOKEN: process.env.SKERRY_TEST_TOKEN };
      const { stdout } = await promisify(execFile)(process.execPath, [join(place, "example.mjs")], { env });
      expect(stdout.trim()).toBe((output as string).trim());
    } finally {
      rmSync(place, { recursive: true });
    }
  });
});
