// Requests to this server, and server-sent events over fetch: EventSource could send no key.

const root = new URL("../", import.meta.url); // where the server's paths begin, also behind a proxy's prefix

let key = sessionStorage.getItem("actorserve-key") ?? "";
let askForKey = () => {};
let waiting = []; // who goes on when a key is given

export function onKeyWanted(ask) {
  askForKey = ask;
}

export function setKey(value) {
  key = value;
  sessionStorage.setItem("actorserve-key", value);
  const told = waiting;
  waiting = [];
  for (const go of told) go();
}

/** Before another try after a Problem: some time, or, where a key is missing, the key. */
export function pause(problem, milliseconds) {
  return new Promise((done) => (problem?.status === 401 ? waiting.push(done) : setTimeout(done, milliseconds)));
}

/** What a person is told; `status` is 0 where no answer came. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** A request's answer; a Problem where it is an error. */
export async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (key) headers["Authorization"] = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(new URL(path, root), {
      method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached.");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) askForKey(Boolean(key));
  throw new Problem(await told(answer), answer.status);
}

async function told(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered ${answer.status} ${answer.statusText}.`;
  }
}

/** The data of an answer's events, one after the other. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have ended in whatever way
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The connection broke off.");
  }
}
