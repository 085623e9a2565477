/** Field names: snake_case on the wire, camelCase in programs. */

import { MAP_FIELDS } from "./maps.js";

type CamelName<S extends string> = S extends `${infer Head}_${infer Tail}` ? `${Head}${Capitalize<CamelName<Tail>>}` : S;

/** A wire type with camelCase names. Maps with keys of the caller, such as `env`, stay as they are. */
export type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? string extends keyof T
      ? T
      : { [K in keyof T as K extends string ? CamelName<K> : K]: Camel<T[K]> }
    : T;

const toCamelName = (name: string): string => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
const toSnakeName = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

function rename(value: unknown, convert: (name: string) => string): unknown {
  if (Array.isArray(value)) return value.map((one) => rename(one, convert));
  if (!isRecord(value)) return value;
  const renamed: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    if (field === undefined) continue;
    const isMap = isRecord(field) && MAP_FIELDS.has(toSnakeName(name));
    // A name like __proto__ comes from a server; it must not become the object's prototype.
    Object.defineProperty(renamed, convert(name), {
      value: isMap ? field : rename(field, convert),
      enumerable: true,
      configurable: true,
      writable: true,
    });
  }
  return renamed;
}

/** Convert the names of a response. */
export function fromWire<T>(value: unknown): Camel<T> {
  return rename(value, toCamelName) as Camel<T>;
}

/** Convert the names of a request, and leave out undefined fields. */
export function toWire<T>(value: Camel<T>): T {
  return rename(value, toSnakeName) as T;
}
