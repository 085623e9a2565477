import { defineConfig } from "vitest/config";

// `await using` needs a newer JavaScript than some supported Nodes have.
export default defineConfig({
  esbuild: { target: "es2022" },
  oxc: { target: "es2022" },
  test: { include: ["test/**/*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000, maxWorkers: 2 },
} as never);
