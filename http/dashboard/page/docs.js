// The list of paths: the document of openapi.json, asked for with the key where there are keys.

import "./key.js";
import { pause, Problem, request } from "./sse.js";

const AGAIN_MS = 2000;
const $ = (id) => document.getElementById(id);

async function read() {
  for (;;) {
    try {
      return await (await request("openapi.json")).json();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      $("docs-error").textContent = error.status === 401 ? "" : error.message;
      await pause(error, AGAIN_MS);
    }
  }
}

function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

/** A schema as JSON, its references in place where they do not lead into themselves. */
function resolved(schema, document, within = []) {
  if (Array.isArray(schema)) return schema.map((one) => resolved(one, document, within));
  if (schema === null || typeof schema !== "object") return schema;
  const { $ref: name } = schema;
  if (name !== undefined) {
    if (within.includes(name)) return { $ref: name };
    const target = name.slice(2).split("/").reduce((place, key) => place[key], document);
    return resolved(target, document, [...within, name]);
  }
  return Object.fromEntries(Object.entries(schema).map(([key, value]) => [key, resolved(value, document, within)]));
}

function shown(title, content, document) {
  return Object.entries(content ?? {}).flatMap(([type, { schema }]) => [
    make("h2", `${title}: ${type}`), make("pre", JSON.stringify(resolved(schema ?? {}, document), null, 2)),
  ]);
}

/** One method of one path; what it takes and answers is made when somebody looks. */
function entry(method, path, operation, document) {
  const statuses = Object.keys(operation.responses).join(" ");
  const head = make("summary", make("b", method.toUpperCase()), make("code", path), make("span", operation.summary), make("span", statuses));
  const fold = make("details", head);
  fold.addEventListener("toggle", () => {
    if (fold.children.length > 1) return;
    fold.append(...shown("It takes", operation.requestBody?.content, document));
    for (const [status, answer] of Object.entries(operation.responses)) fold.append(...shown(`It answers ${status}`, answer.content, document));
  });
  return fold;
}

const found = await read();
$("docs-error").textContent = "";
$("title").textContent = `${found.info.title} ${found.info.version}`;
for (const [path, methods] of Object.entries(found.paths)) {
  for (const [method, operation] of Object.entries(methods)) $("paths").append(entry(method, path, operation, found));
}
