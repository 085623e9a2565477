// Convert code for V8's REPL mode: `import` declarations are awaited, `export` is dropped, types are stripped. Line
// numbers do not change.
const START = process.cwd();
const REGEX_AFTER = new Set("return typeof instanceof in of new delete void throw case do else yield await".split(" "));
const WORD = /[\p{ID_Start}$_\d\\#][\p{ID_Continue}$\u200c\u200d\\]*/uy;
const NOTHING = /(?:\s|\/\/.*|\/\*[^]*?\*\/)*/y;
const BLOCK_AFTER = /^(?:[;{:]|=>|else|do|try|finally)$/;
const CLAUSE = /^\s*([\p{ID_Continue}$]+)?\s*,?\s*(?:\*\s*as\s+([\p{ID_Continue}$]+))?\s*(?:\{([^]*)\})?\s*$/u;
const QUOTED = String.raw`(?:"[^"\n]*"|'[^'\n]*')`;
const HOW = String.raw`(?:\s*with\s*(?<how>\{[^}]*\}))?`;
const DECLARED = new RegExp(
  String.raw`import\s*(?:(?<clause>[^"']*?)\s*from\s*)?(?<module>${QUOTED})${HOW}[ \t]*;?`, "y");
const EXPORTED = new RegExp(String.raw`export\s*(?:\*[^"';]*|\{[^}]*\})\s*(?:from\s*${QUOTED})?[ \t]*;?`, "y");
const NAMED = String.raw`(?:async\s+)?function\b\s*\*?\s*[\w$]|class\s+(?!extends\b)[\w$]`;
const DECLARATION = String.raw`const\b|let\b|var\b|class\b|function\b|async\b`;
const EXPORT = new RegExp(String.raw`export\s+(?:default\s+(?=${NAMED})|(?=${DECLARATION}))`, "y");

function match(pattern, code, at) {
  pattern.lastIndex = at;
  return pattern.exec(code);
}

function* words(code) {
  // Yield the words outside strings and comments: [word, position, depth, previous word].
  let before = "", at = 0;
  const open = []; // for each open bracket: its kind, and whether a `/` after it begins a regular expression
  const regexMay = () => {
    if (before === "" || REGEX_AFTER.has(before)) return true;
    return typeof before === "object" ? before.regex : !/^[\p{ID_Continue}$"'`/]|^(?:\+\+|--|\])$/u.test(before);
  };
  const template = (from) => {
    for (at = from; at < code.length && code[at] !== "`"; at++) {
      if (code[at] === "\\") at++;
      else if (code[at] === "$" && code[at + 1] === "{") {
        open.push({ template: true });
        before = "{";
        at += 2;
        return;
      }
    }
    at++;
    before = "`";
  };
  while (at < code.length) {
    at = match(NOTHING, code, at) ? NOTHING.lastIndex : at;
    if (at >= code.length) return;
    const character = code[at], word = match(WORD, code, at);
    if (word) {
      yield [word[0], at, open.length, before];
      before = word[0];
      at += word[0].length;
    } else if (character === '"' || character === "'") {
      for (at++; at < code.length && code[at] !== character && code[at] !== "\n"; at++) if (code[at] === "\\") at++;
      at++;
      before = '"';
    } else if (character === "`") template(at + 1);
    else if (character === "/" && regexMay()) {
      for (let set = false; ++at < code.length && code[at] !== "\n" && (set || code[at] !== "/"); ) {
        if (code[at] === "\\") at++;
        else if (code[at] === "[") set = true;
        else if (code[at] === "]") set = false;
      }
      at++;
      before = "/";
    } else if ("([{".includes(character)) {
      const block = character === "{" && (before === "" || typeof before === "object" || BLOCK_AFTER.test(before));
      open.push({ regex: block || /^(?:if|while|for|with)$/.test(before) });
      before = character;
      at++;
    } else if (")]}".includes(character)) {
      const opened = open.pop();
      if (opened?.template) template(at + 1);
      else {
        before = character === "]" ? "]" : { regex: opened?.regex ?? true };
        at++;
      }
    } else {
      const mark = ["=>", "++", "--", "?."].find((mark) => code.startsWith(mark, at)) ?? character;
      before = mark;
      at += mark.length;
    }
  }
}

function imported({ clause, module, how }) {
  const options = how ? `, { with: ${how} }` : ", undefined";
  if (!clause) return `void await __import(${module}${options});`;
  const plain = clause.replace(/\/\/.*|\/\*[^]*?\*\//g, " ");
  const [, first, space, named] = CLAUSE.exec(plain) ?? [];
  const names = first ? [["default", first]] : [];
  for (const part of (named ?? "").split(",")) {
    const [name, , as] = part.trim().split(/\s+(as)\s+/);
    if (name) names.push([name, as ?? name]);
  }
  const wanted = JSON.stringify(names.map(([name]) => name.replace(/^["']|["']$/g, "")));
  const taken = `{ ${names.map(([name, as]) => `${name}: ${as}`).join(", ")} }`;
  const call = `await __import(${module}${options}, ${wanted})`;
  if (!space) return `const ${taken} = ${call};`;
  return names.length ? `const ${space} = ${call}, ${taken} = ${space};` : `const ${space} = ${call};`;
}

function asScript(code) {
  if (!/\b(?:import|export)\b/.test(code)) return code;
  let made = "", from = 0;
  const replace = (at, to, text) => {
    made += code.slice(from, at) + text + code.slice(at, to).replace(/[^\n]+/g, "");
    from = to;
  };
  for (const [word, at, depth, before] of words(code)) {
    if (at < from || before === "." || before === "?.") continue;
    const after = word === "import" && code[match(NOTHING, code, at + 6) ? NOTHING.lastIndex : 0];
    if (after === "(") replace(at, at + 6, "__import");
    else if (after === ".") replace(at, at + 6, "__import");
    else if (depth > 0) continue;
    else if (word === "import") {
      const found = match(DECLARED, code, at);
      if (found && found.groups.clause !== "") replace(at, at + found[0].length, imported(found.groups));
    } else if (word === "export") {
      const found = match(EXPORTED, code, at) ?? match(EXPORT, code, at) ?? match(/export\s+default\b/y, code, at);
      if (found) replace(at, at + found[0].length, "");
    }
  }
  return made + code.slice(from);
}

function withoutTypes(run, code) {
  const { stripTypeScriptTypes, SourceMap } = require("module");
  if (stripTypeScriptTypes === undefined) {
    throw new Error(`Node ${process.version} can't strip types: TypeScript needs 22.13 or newer`);
  }
  const { emitWarning } = process;
  process.emitWarning = () => {}; // the warning that this is experimental
  try {
    return stripTypeScriptTypes(code);
  } catch (error) {
    if (error.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw asSyntaxError(error);
    try {
      const made = stripTypeScriptTypes(code, { mode: "transform", sourceMap: true });
      const [script, map] = made.split(/\n*\/\/# sourceMappingURL=data:application\/json;base64,/);
      run.map = new SourceMap(JSON.parse(Buffer.from(map, "base64")));
      run.lines = (line, column) => {
        const { originalLine, originalColumn } = run.map.findEntry(line - 1, column - 1);
        return originalLine === undefined ? `${line}:${column}` : `${originalLine + 1}:${originalColumn + 1}`;
      };
      return script;
    } catch (other) {
      throw asSyntaxError(other.code?.includes("TYPESCRIPT") ? other : error);
    }
  } finally {
    process.emitWarning = emitWarning;
  }
}
class Refused extends Error {} // `details`: in V8's format
function asSyntaxError(error) {
  // Node gives the position in the stack: `:2`, lines, and `   ^`.
  const line = /^:(\d+)$/m.exec(error.stack)?.[1], column = /^( *)\^/m.exec(error.stack)?.[1].length;
  const details = { lineNumber: (line ?? 1) - 1, columnNumber: column ?? -1 };
  return Object.assign(new Refused(), { details: { ...details, text: `SyntaxError: ${error.message.trim()}` } });
}

function prepare(run) {
  // A `{` at the start begins an object if that is valid, not a block.
  let code = LANGUAGE === "typescript" ? withoutTypes(run, run.source) : run.source;
  const script = asScript(code);
  run.rewritten = script !== code;
  if (/^\s*\{/.test(script) && !/;\s*$/.test(script)) {
    try {
      new vm.Script(`(${script}\n)`);
      return `(${script}\n)`;
    } catch {}
  }
  return script;
}

Object.defineProperty(globalThis, "__import", { enumerable: false, value: Object.assign(
  async (name, options, names = []) => {
    const here = new Error().stack.match(PLACE);
    try {
      const module = await load(name, options);
      const missing = LANGUAGE !== "typescript" && names.find((name) => !(name in module));
      if (!missing) return module;
      throw new SyntaxError(`The requested module '${name}' does not provide an export named '${missing}'`);
    } catch (error) {
      if (here && isError(error) && error.stack.search(PLACE) < 0) error.stack += `\n    at ${here[0]}`;
      throw error;
    }
  },
  { meta: {
    dirname: START, filename: `${START}/main.js`, url: require("url").pathToFileURL(`${START}/main.js`).href,
    resolve: (name) => require("url").pathToFileURL(require.resolve(name)).href,
  } },
) });
