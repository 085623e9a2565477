// Format values and errors: texts and JSON, bounded; stacks without frames of the kernel.
const fs = require("fs"), vm = require("vm"), util = require("util"), inspector = require("inspector");
const { promiseHooks } = require("v8"), { Readable, Writable } = require("stream");
const { process, setImmediate, setTimeout, clearTimeout, Buffer } = globalThis, exit = process.reallyExit.bind(process);
const { then } = Promise.prototype;
const KERNEL = "<skerry>";
const TEXTS = [
  "text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml", "application/json",
  "application/javascript",
];
const PICTURES = { "image/png": [0x89, 0x50, 0x4e, 0x47], "image/jpeg": [0xff, 0xd8, 0xff] };
const BUNDLES = ["_repr_mimebundle_", Symbol.for("Jupyter.display")];
const MAX_PROPERTIES = 8 << 10;
const LOOK = { depth: 4, maxArrayLength: 100, maxStringLength: 10000, breakLength: 100 };

function inspect(value) {
  try {
    const whole = typeof value === "string" ? value.slice(0, MAX_TEXT) : value;
    return util.inspect(whole, whole === value ? LOOK : { ...LOOK, maxStringLength: MAX_TEXT });
  } catch (error) {
    return `[${typeof value} that can't be shown: ${described(error)}]`;
  }
}
function described(error) {
  try {
    return String(error?.stack ? `${error.name}: ${error.message}` : error);
  } catch {
    return "an error that can't be shown either";
  }
}
function cutText(text) {
  const bytes = Buffer.from(text.length > MAX_TEXT ? text.slice(0, MAX_TEXT) : text);
  if (bytes.length <= MAX_TEXT && text.length <= MAX_TEXT) return [bytes, false];
  let to = Math.min(bytes.length, MAX_TEXT);
  while (to > 0 && (bytes[to] & 0xc0) === 0x80) to--;
  return [bytes.subarray(0, to), true];
}

class TooMuch extends Error {}
const PLAIN = new Set(["[object Object]", "[object Array]", "[object Date]", "[object String]", "[object Number]",
  "[object Boolean]", "[object Error]"]);
function weigh(value, room, above) {
  // Throw TooMuch if the value's JSON is longer than `room`, and another error if JSON cannot represent the value.
  if (typeof value === "string") room.left -= value.length;
  room.left -= 2;
  if (room.left < 0) throw new TooMuch();
  if (["function", "symbol", "bigint"].includes(typeof value)) throw new TypeError("not JSON");
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError("not JSON");
  if (value === null || typeof value !== "object") return;
  if (typeof value.toJSON === "function") {
    if (ArrayBuffer.isView(value)) room.left -= value.byteLength * 4;
    return;
  }
  if (above.includes(value) || !PLAIN.has(Object.prototype.toString.call(value))) throw new TypeError("not JSON");
  above.push(value);
  if (Array.isArray(value)) {
    if (value.length > room.left) throw new TooMuch();
    for (const part of value) weigh(part, room, above);
  } else {
    for (const key of Object.keys(value)) {
      room.left -= key.length + 4;
      weigh(value[key], room, above);
    }
  }
  above.pop();
}
function jsonOf(value) {
  if (isError(value)) value = { name: value.name, message: value.message, ...value };
  weigh(value, { left: MAX_TEXT }, []);
  let room = MAX_TEXT; // counted again: `toJSON` may return any value
  const text = JSON.stringify(value, (key, part) => {
    room -= key.length + (typeof part === "string" ? part.length : 4);
    if (room < 0) throw new TooMuch();
    return part;
  });
  if (text !== undefined && Buffer.byteLength(text) > MAX_TEXT) throw new TooMuch();
  return text;
}

function formsOf(value) {
  const forms = {}, cut = [];
  const put = (type, content) => {
    if (type in PICTURES) {
      const bytes = typeof content === "string" ? Buffer.from(content, "base64") : Buffer.from(content);
      if (bytes.length > MAX_PICTURE) cut.push(type);
      else forms[type] = bytes;
    } else if (TEXTS.includes(type)) {
      const json = type === "application/json" && typeof content !== "string";
      const [bytes, shortened] = cutText(json ? jsonOf(content) ?? "null" : String(content));
      if (shortened) cut.push(type);
      if (!shortened || type === "text/plain") forms[type] = bytes;
    }
  };
  try {
    const own = value !== null && typeof value === "object" ? BUNDLES : [];
    const name = own.find((name) => typeof value[name] === "function");
    for (const [type, content] of Object.entries((name && value[name]()) || {})) put(type, content);
  } catch (error) {
    forms["text/plain"] = Buffer.from(`[${typeof value} that can't be shown: ${described(error)}]`);
  }
  if (value instanceof Uint8Array) {
    const type = Object.keys(PICTURES).find((type) => PICTURES[type].every((byte, at) => value[at] === byte));
    if (type) put(type, value);
  }
  if (!("text/plain" in forms)) put("text/plain", isError(value) ? ours(inspect(value)) : inspect(value));
  if (!("application/json" in forms) && !ArrayBuffer.isView(value)) {
    try {
      const text = jsonOf(value);
      if (text !== undefined) forms["application/json"] = Buffer.from(text);
    } catch (error) {
      if (error instanceof TooMuch) cut.push("application/json");
    }
  }
  return { forms, cut };
}
function result(run, value, main) {
  // Return null if the run has reached its limit of results.
  const { forms, cut } = formsOf(value);
  for (const [type, bytes] of Object.entries(forms)) {
    if (run.bytes + bytes.length > MAX_BYTES) {
      delete forms[type];
      cut.push(type);
    } else run.bytes += bytes.length;
  }
  if (++run.results > MAX_RESULTS - (main ? 0 : 1)) {
    const most = MAX_RESULTS - 1;
    if (run.results === MAX_RESULTS) stderr.write(`display: more than ${most} results, the rest is left out\n`);
    if (!main) return null;
  }
  return { run: run.id, main: main ? "1" : "0", ...(cut.length ? { cut: [...new Set(cut)].join(" ") } : {}), ...forms };
}

// -- errors

const isError = (value) => util.types.isNativeError(value) || value instanceof Error;
const urlOf = (run) => `<cell-${run.number}>`;
const PLACE = /<cell-(\d+)>:(\d+):(\d+)/g;
const SHOWN = /<cell (\d+)>:(\d+):(\d+)/g;
const AROUND = /\((?:node:vm|node:internal\/vm|node:internal\/process\/task_queues):/;
const BESIDE = /^\s+at process\.processTicksAndRejections \(node:|^\s+\.\.\. \d+ lines matching cause stack trace/;
const SEARCHED = / imported from \S*\[eval\d*\]|\nRequire stack:\n- \S*\[eval\d*\](?!\n- )/g;

function ours(text) {
  // Remove the kernel's frames, and the frames of Node around them.
  const kept = [];
  let below = false;
  for (const line of text.replace(SEARCHED, "").split("\n")) {
    const frame = /^\s+at /.test(line), awaited = /^\s+at async /.test(line);
    let drop = BESIDE.test(line);
    if (frame && (line.includes(KERNEL) || line.includes("Session.post (node:inspector:"))) {
      drop = below = true;
      while (kept.length && AROUND.test(kept[kept.length - 1])) kept.pop();
    } else if (frame) drop ||= below && !awaited;
    else below = false;
    if (!drop) kept.push(line);
    else if (line.endsWith(" {") && kept.length) kept.push(kept.pop() + " {"); // the error's properties follow
  }
  return kept.join("\n").replace(PLACE, placed);
}
function placed(_, number, line, column) {
  // Map a position to the original code.
  const run = runs.find((run) => run.number === Number(number));
  return `<cell ${number}>:${run?.lines ? run.lines(Number(line), Number(column)) : `${line}:${column}`}`;
}
function pointing(run, line, column) {
  const source = run?.source?.split("\n", line)[line - 1];
  if (source === undefined) return "";
  const shown = source.slice(0, 200), caret = column > 0 && column <= shown.length + 1 && !run.rewritten;
  const under = shown.slice(0, column - 1).replace(/[^\t]/g, " ");
  return `<cell ${run.number}>:${line}\n${shown}\n${caret ? `${under}^\n` : ""}\n`;
}
function failure(thrown, run) {
  if (!isError(thrown)) {
    const text = inspect(thrown), properties = propertiesOf(thrown);
    return bounded({ name: "Uncaught", message: text, traceback: `Uncaught ${text}`, ...properties });
  }
  const read = (name, other) => {
    try {
      return String(thrown[name] ?? other);
    } catch {
      return other;
    }
  };
  const shown = ours(inspect(thrown));
  const places = [...ours(read("stack", "")).matchAll(SHOWN)].map((at) => at.map(Number));
  const here = places.find(([, number]) => number === run.number), top = places[0];
  const head = top ? pointing(runs.find(({ number }) => number === top[1]), top[2], top[3]) : "";
  const message = read("message", "").replace(SEARCHED, "");
  const line = here && { line: String(here[2]) };
  return bounded({ name: read("name", "Error"), message, traceback: head + shown, ...line, ...propertiesOf(thrown) });
}
function propertiesOf(thrown) {
  // Return the error's additional properties: a code, a path, a status.
  try {
    const { name, message, stack, ...own } = thrown;
    const json = JSON.stringify(Object.fromEntries(Object.entries(own).filter(([, value]) => holdable(value))));
    const some = thrown !== null && typeof thrown === "object" && json !== "{}" && json.length <= MAX_PROPERTIES;
    return some ? { properties: json } : {};
  } catch {
    return {};
  }
}
function holdable(value) {
  try {
    return jsonOf(value) !== undefined;
  } catch {
    return false;
  }
}
function refusal(refused, run) {
  // V8 rejected the code before running it.
  const said = refused.exception?.description?.split("\n")[0] ?? String(refused.message ?? refused.text);
  const [, name, message] = /^(\w+): (.*)$/s.exec(said) ?? [null, "SyntaxError", said];
  const declared = /^Identifier '.*' has already been declared$/.test(message);
  const kinds = "as a function or var in one run, with let, const or class in another";
  const hint = declared ? ` (${kinds}: one of them must give way)` : "";
  const at = Math.min((refused.lineNumber ?? 0) + 1, run.source.split("\n").length);
  const line = run.lines ? Number(run.lines(at, 1).split(":")[0]) : at;
  const head = pointing(run, line, declared ? 0 : (refused.columnNumber ?? -1) + 1);
  return bounded({ name, message: message + hint, traceback: `${head}${name}: ${message}${hint}`, line: String(line) });
}
function bounded(fields) {
  for (const name of ["message", "traceback"]) fields[name] = cutText(fields[name])[0];
  fields.name = fields.name.slice(0, 200);
  return fields;
}
