/** The server under test: tests/sdk/test_typescript.py starts it and names it in the environment. */

import { Client } from "../src/index.js";

function named(name: string): string {
  const value = process.env[name];
  if (value === undefined) throw new Error(`${name} is not set: run these tests with \`make test ARGS=tests/sdk\``);
  return value;
}

export const unix = new Client({ server: named("SKERRY_TEST_SOCKET") });
export const tcp = new Client({ server: named("SKERRY_TEST_URL"), token: named("SKERRY_TEST_TOKEN") });
