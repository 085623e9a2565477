// The kernel of a JavaScript context: reads runs from its channel, runs them, sends results (`kernel_protocol.py`).
// V8's REPL mode evaluates the code: top-level await; `let`, `const` and `class` persist and may be declared again.
// `javascript_values.js` and `javascript_source.js` come before this file in the same script.
// `require` and `load` (a dynamic import) come from the command line: both resolve from the cwd at the start.
const CHANNEL = 3;
const nap = new Int32Array(new SharedArrayBuffer(4));
const mine = fs.fstatSync(CHANNEL);

function again(call) {
  for (;;) {
    try {
      return call();
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(nap, 0, 0, 1);
    }
  }
}
function writeAll(fd, bytes) {
  for (let at = 0; at < bytes.length; ) at += again(() => fs.writeSync(fd, bytes, at));
}
let unsaid = null; // the unsent rest of a message that SIGINT interrupted
function say(kind, fields) {
  const parts = [];
  for (const [name, value] of Object.entries(fields)) {
    const size = Buffer.alloc(4), content = typeof value === "string" ? Buffer.from(value) : value;
    size.writeUInt32BE(content.length);
    parts.push(Buffer.from([name.length]), Buffer.from(name), size, content);
  }
  const body = Buffer.concat(parts), head = Buffer.alloc(5, kind);
  head.writeUInt32BE(body.length, 1);
  try {
    const now = fs.fstatSync(CHANNEL); // the code may have closed it, and another file may have its number now
    if (now.dev !== mine.dev || now.ino !== mine.ino) exit(70);
    unsaid = Buffer.concat([unsaid ?? head.subarray(5), head, body]);
    while (unsaid.length) unsaid = unsaid.subarray(again(() => fs.writeSync(CHANNEL, unsaid)));
    unsaid = null;
  } catch {
    exit(70);
  }
}
function fieldsOf(body) {
  const fields = {};
  for (let at = 0; at < body.length; ) {
    const named = at + 1 + body[at], from = named + 4, to = from + body.readUInt32BE(named);
    fields[body.toString("latin1", at + 1, named)] = body.subarray(from, to);
    at = to;
  }
  return fields;
}

// -- standard streams of the code

class Out extends Writable {
  // Unbuffered: no output is pending when a run ends or the process dies, and SIGINT cannot corrupt any state here.
  constructor(fd) {
    super({ emitClose: false });
    this.fd = fd;
    this._type = "pipe";
    this._isStdio = true;
  }
  write(chunk, encoding, done) {
    const name = typeof encoding === "string" ? encoding : "utf8";
    const bytes = typeof chunk === "string" ? Buffer.from(chunk, name) : chunk;
    if (!(bytes instanceof Uint8Array)) throw new TypeError('The "chunk" argument must be a string or a Uint8Array');
    let failed = null;
    try {
      writeAll(this.fd, bytes);
    } catch (error) {
      failed = error;
    }
    const tell = [encoding, done].find((given) => typeof given === "function");
    if (tell) process.nextTick(tell, failed);
    return true;
  }
  end(chunk, encoding, done) {
    const tell = [chunk, encoding, done].find((given) => typeof given === "function");
    if (chunk != null && chunk !== tell) this.write(chunk, encoding);
    if (tell) process.nextTick(tell);
    return this;
  }
  destroy() {
    return this;
  }
}
class In extends Readable {
  constructor() {
    super();
    this.fd = 0;
  }
  _read(size) {
    try {
      const bytes = Buffer.alloc(size), count = again(() => fs.readSync(0, bytes));
      this.push(count ? bytes.subarray(0, count) : null);
    } catch (error) {
      this.destroy(error);
    }
  }
  ref() {}
  unref() {}
}
const own = (name, value) => Object.defineProperty(process, name, {
  configurable: true, enumerable: true, get: value });
const stdout = new Out(1), stderr = new Out(2);
let stdin = null;
own("stdout", () => stdout);
own("stderr", () => stderr);
own("stdin", () => (stdin ??= new In()));

let given = true;
function giveInput(bytes) {
  // Node has no dup2. The next opened file gets the lowest free number, which is 0 after 0 is closed.
  stdin = null;
  if (!given && bytes === undefined) return;
  given = bytes !== undefined;
  try {
    fs.closeSync(0);
  } catch {} // the code has closed it
  if (!given) return fs.openSync("/dev/null", "r");
  const flags = fs.constants.O_RDWR | fs.constants.O_DIRECTORY | 0o20000000; // O_TMPFILE: a file without a name
  for (const place of ["/dev/shm", require("os").tmpdir(), "."]) {
    try {
      const fd = fs.openSync(place, flags, 0o600);
      for (let at = 0; at < bytes.length; ) at += fs.writeSync(fd, bytes, at, bytes.length - at, at);
      return fd;
    } catch {}
  }
  fs.openSync("/dev/null", "r");
  throw new Error("there is no place for the standard input: /dev/shm and /tmp can't be written");
}

// -- runs

class Exit extends Error {}
const INTERRUPTED = { name: "Interrupted", message: "it was interrupted", traceback: "" };
const runs = []; // the latest runs, for quoting lines of their code
let current = null, count = 0, job = null, disconnect = () => {};
const settleAll = process._tickCallback ?? (() => {});

const guarded = new vm.Script("__skerry()", { filename: KERNEL });
Object.defineProperty(globalThis, "__skerry", { value: () => job(), enumerable: false });
function interruptible(work) {
  // SIGINT ends the work, even `while (true) {}`. An exception passes on to the event loop: only there Node restores
  // its internal state.
  job = work;
  try {
    guarded.runInThisContext({ breakOnSigint: true });
  } finally {
    const listeners = process.rawListeners("SIGINT");
    if (listeners.length > 1) {
      // Node no longer has a signal handler for a listener added by the work: SIGINT would end the process.
      process.removeAllListeners("SIGINT");
      for (const listener of listeners) process.on("SIGINT", listener);
    }
  }
}

function wasInterrupted(ms) {
  // Node misses a SIGINT that arrives while such a script ends, and delivers it in the next script.
  job = () => Atomics.wait(nap, 0, 0, ms);
  try {
    guarded.runInThisContext({ breakOnSigint: true });
    return false;
  } catch {
    return true;
  }
}

function begin(fields) {
  const run = {
    id: fields.run.toString(), number: ++count, last: fields.last !== undefined, results: 0, bytes: 0, timers: [],
  };
  current = run;
  process.exitCode = undefined;
  runs.push(run);
  if (runs.length > 64) runs.shift();
  say("B", { run: run.id });
  interruptible(() => {
    try {
      run.source = fields.code.toString();
      giveInput(fields.stdin);
      run.before = setVariables(fields.env);
      start(run, prepare(run));
    } catch (error) {
      settle(run, error instanceof Refused ? { refused: error.details } : { thrown: error });
    }
    settleAll(); // SIGINT ends an endless chain of awaits only in here
  });
  if (run.outcome === undefined && wasInterrupted(1)) interrupt();
}

function setVariables(env) {
  const before = [];
  for (const item of (env?.toString() ?? "").split("\0")) {
    if (item === "") continue;
    const at = item.indexOf("=");
    const name = at < 0 ? item : item.slice(0, at);
    before.push([name, process.env[name]]);
    setVariable(name, at < 0 ? undefined : item.slice(at + 1));
  }
  return before;
}
function setVariable(name, value) {
  if (value === undefined) delete process.env[name];
  else process.env[name] = value;
}

function start(run, code) {
  let made, refused;
  let stop = promiseHooks.onInit((promise) => {
    made ??= promise; // the first promise is the run's
    stop?.();
    stop = null;
  });
  const asked = { expression: `${code}\n//# sourceURL=${urlOf(run)}`, replMode: true };
  const session = new inspector.Session();
  disconnect = () => {
    disconnect = () => {};
    session.disconnect();
    stop?.();
  };
  session.connect();
  try {
    session.post("Runtime.evaluate", asked, (error, answer) => (refused ??= answer?.exceptionDetails ?? error));
  } finally {
    // A connected session would send a text of 500 MB as JSON, and Node 24 crashes if it collects an awaited promise.
    disconnect();
  }
  if (made === undefined) return settle(run, { refused });
  then.call(made, (held) => arrive(run, held[".repl_result"]), (thrown) => settle(run, { thrown }));
  then.call(made, () => (run.settled = true), () => (run.settled = true));
}
function arrive(run, value) {
  // The value of a promise, as of `main()`, is the value that it resolves to.
  if (!util.types.isPromise(value)) return settle(run, { value });
  then.call(value, (found) => settle(run, { value: found }), (thrown) => settle(run, { thrown }));
}
function settle(run, outcome) {
  if (run.outcome !== undefined || run !== current) return;
  run.outcome = outcome;
  if (of(outcome.thrown, "signal") === "SIGINT") { // it ended the awaited child; the whole process group gets it
    run.interrupted = true;
    setTimeout(finish, 10, run); // the kernel's may arrive later
    return;
  }
  // Node reports unhandled rejections only after this turn of the event loop.
  if (!run.last || "thrown" in outcome || outcome.refused) setImmediate(finish, run);
}
function of(thrown, name) {
  try {
    return thrown?.[name];
  } catch {
    return undefined;
  }
}
function fail(thrown) {
  const run = current;
  if (run === null || of(thrown, "code") === "ERR_SCRIPT_EXECUTION_INTERRUPTED") {
    if (run !== null) {
      cutShort();
      interrupt();
    } else stderr.write(`Uncaught ${ours(inspect(thrown))}\n`);
  } else if (run.outcome === undefined) settle(run, { thrown });
  else if (!("thrown" in run.outcome)) {
    run.outcome = { thrown };
    if (run.last) setImmediate(finish, run);
  }
}
function cutShort() {
  // Continuations after an `await` are in a queue, where SIGINT would not interrupt them. Run the queue briefly, then
  // end it.
  disconnect();
  job = settleAll;
  try {
    guarded.runInThisContext({ timeout: 50 });
  } catch {}
}
function interrupt() {
  if (current === null) return;
  const run = current;
  if (run.interrupted) return;
  run.interrupted = true;
  setImmediate(finish, run);
}

function finish(run) {
  if (run !== current) return;
  if (run.said === undefined && !run.interrupted) {
    run.said = null; // only once: the interrupt may have hit the formatting of the value
    interruptible(() => (run.said = reply(run)));
  }
  if (run.interrupted) run.said = ["E", { run: run.id, ...INTERRUPTED }];
  if (run.said) say(...run.said);
  end(run);
}
function reply(run) {
  const { thrown, refused, value } = run.outcome;
  let error = null;
  if (run.exit !== undefined) error = run.exit && { name: "ExitStatus", message: `${run.exit}`, traceback: "" };
  else if (refused) error = refusal(refused, run);
  else if ("thrown" in run.outcome) error = failure(thrown, run);
  else if (value !== undefined) return ["O", result(run, value, true)];
  return error ? ["E", { run: run.id, ...error }] : null;
}
function end(run) {
  current = null;
  for (const stream of [stdout, stderr]) delete stream.write; // undo replacements by the code
  try {
    stdin?.destroy();
    giveInput();
  } catch {}
  for (const [name, value] of run.before ?? []) setVariable(name, value);
  const status = run.said?.[0] === "E" ? "error" : "ok";
  if (run.interrupted) wasInterrupted(5); // so that the next run is not interrupted
  say("D", { run: run.id, status: run.interrupted ? "interrupted" : status });
  if (!run.settled || run.exit !== undefined) run.timers.forEach(clearTimeout);
  run.outcome = run.said = run.timers = undefined;
  listen();
}

// -- timers, exit, and the channel

for (const name of ["setTimeout", "setInterval", "setImmediate"]) {
  // Record timers: after an early end of a run, its code would continue with the next timer.
  const real = globalThis[name], kept = { [name](...given) {
    const timer = Reflect.apply(real, this, given), timers = current?.timers;
    if (timers && timers.push(timer) % 1024 === 0) current.timers = timers.filter((one) => !one._destroyed);
    return timer;
  } }[name];
  Object.defineProperties(kept, Object.getOwnPropertyDescriptors(real));
  globalThis[name] = kept;
}
process.exit = (code = process.exitCode) => {
  const run = current;
  if (run === null) return;
  run.exit ??= Number(code ?? 0) & 255;
  throw new Exit(`process.exit(${run.exit})`);
};
process.on("SIGINT", interrupt);
process.on("uncaughtException", (thrown) => {
  if (process.listenerCount("uncaughtException") === 1 || thrown instanceof Exit) fail(thrown);
});
process.on("unhandledRejection", (thrown) => {
  if (process.listenerCount("unhandledRejection") === 1 || thrown instanceof Exit) fail(thrown);
});
process.on("beforeExit", () => {
  // The event loop is empty.
  const run = current;
  if (run === null) return;
  if (run.outcome === undefined) {
    settle(run, { thrown: new Error("what is awaited never comes: nothing is left that could bring it") });
  } else if (run.last) {
    process.emit("exit", process.exitCode ?? 0);
    run.exit ??= process.exitCode || undefined;
  }
  setImmediate(finish, run);
});

let channel = null, held = [], size = 0;
function take() {
  // Begin the next run if its message is complete.
  if (size < 5 || current !== null) return;
  const all = held.length === 1 ? held[0] : Buffer.concat(held, size);
  held = [all];
  const to = 5 + all.readUInt32BE(1);
  if (size < to) return;
  held = [all.subarray(to)];
  size -= to;
  channel.pause();
  channel.unref();
  current = { results: 0 }; // no other run may begin
  setImmediate(begin, fieldsOf(all.subarray(5, to)));
}
function listen() {
  if (channel === null) {
    channel = new (require("net").Socket)({ fd: CHANNEL, readable: true, writable: false, allowHalfOpen: true });
    channel.on("data", (bytes) => {
      held.push(bytes);
      size += bytes.length;
      take();
    });
    channel.on("close", () => exit(0));
    channel.on("end", () => exit(0));
    channel.on("error", () => exit(70));
  }
  channel.ref();
  channel.resume();
  take();
}
function first() {
  // Wait for the first run without the event loop: no background work exists yet.
  for (const [name, value] of Object.entries(main)) { // after Node's `-e`, which sets them too
    Object.defineProperty(globalThis, name, { value, enumerable: false, writable: true, configurable: true });
  }
  const head = Buffer.alloc(5), read = (into) => {
    for (let at = 0; at < into.length; ) {
      const got = again(() => fs.readSync(CHANNEL, into.subarray(at)));
      if (got === 0) exit(0);
      at += got;
    }
    return into;
  };
  begin(fieldsOf(read(Buffer.alloc(read(head).readUInt32BE(1)))));
}

process.execArgv = []; // a child that the code forks must not be a kernel
process.argv = [process.argv[0], "main.js"];
const main = { module: globalThis.module, __dirname: START, __filename: `${START}/main.js` };
process.mainModule = require.main = main.module;
Object.defineProperty(globalThis, "display", {
  value: (...values) => {
    for (const value of current === null ? [] : values) {
      const said = result(current, value, false);
      if (said) say("O", said);
    }
  },
  enumerable: false, writable: true, configurable: true,
});
say("H", { version: process.versions.node });
setImmediate(first);
