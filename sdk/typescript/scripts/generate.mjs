// Writes src/schema.ts and src/maps.ts from the server's OpenAPI document.
//   node scripts/generate.mjs [--check] openapi.json
import { readFileSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const check = process.argv.includes("--check");
const [file] = process.argv.slice(2).filter((argument) => !argument.startsWith("--"));
if (!file) throw new Error("usage: node scripts/generate.mjs [--check] openapi.json");
const document = JSON.parse(readFileSync(file, "utf8"));

// Errors have one shape, which errors.ts has.
for (const operations of Object.values(document.paths)) {
  for (const operation of Object.values(operations)) {
    for (const status of Object.keys(operation.responses)) {
      if (Number(status) >= 400) delete operation.responses[status];
    }
  }
}

/** Say of objects without named fields that they have values: openapi-typescript takes them for empty. */
function openMaps(schema) {
  if (schema === null || typeof schema !== "object") return;
  if (schema.type === "object" && !schema.properties) schema.additionalProperties ??= true;
  Object.values(schema).forEach(openMaps);
}
openMaps(document.components.schemas);

/** Fields with objects whose keys belong to the caller or a program, such as `env`: these keys are never converted. */
function mapFields(schemas) {
  const isMap = (schema) =>
    (schema.type === "object" && !schema.properties) || (schema.anyOf ?? []).some((one) => isMap(one));
  const maps = Object.values(schemas).flatMap((schema) =>
    Object.entries(schema.properties ?? {}).filter(([, field]) => isMap(field)).map(([name]) => name),
  );
  return [...new Set(maps)].sort();
}

const maps = mapFields(document.components.schemas);
const structs = Object.entries(document.components.schemas).flatMap(([schema, { properties = {} }]) =>
  Object.entries(properties).filter(([name, field]) => maps.includes(name) && field.$ref).map(([name]) => `${schema}.${name}`),
);
if (structs.length > 0) throw new Error(`a map in one schema and an object with fields in another: ${structs}`);

const banner = "// Generated from the server's OpenAPI document by scripts/generate.mjs. Do not edit.\n";
const types = astToString(await openapiTS(document, { defaultNonNullable: false, alphabetize: true }))
  .replace(/^ +\/\*\* @default .*\n/gm, "")
  .replace(/^ +\w+\?: never;\n/gm, "")
  .replace(/ {4}/g, "  ");
const outputs = {
  "src/schema.ts": `${banner}\n${types}`,
  "src/maps.ts": `${banner}\nexport const MAP_FIELDS: ReadonlySet<string> = new Set(${JSON.stringify(maps)});\n`,
};

let stale = false;
for (const [path, text] of Object.entries(outputs)) {
  const target = new URL(`../${path}`, import.meta.url);
  if (!check) writeFileSync(target, text);
  else if (readFileSync(target, "utf8") !== text) {
    stale = true;
    console.error(`${path} is not current: run \`make typescript\``);
  }
}
process.exitCode = stale ? 1 : 0;
