// The conversation: kept in this page's memory, answered as a stream, one answer at a time.

import { render } from "./markdown.js";
import { events, Problem, request } from "./sse.js";

const STARTERS = ["What is the capital of France?", "What happens when an actor dies?", "How do I set an API key?"];
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const NEAR = 60; // pixels from the end within which the conversation follows the answer
const $ = (id) => document.getElementById(id);

const turns = []; // {role, content, reasoning, view}
let running = null; // the AbortController of the answer that is coming
let model = "";

export function setModel(name) {
  model = name;
}

export function start() {
  for (const text of STARTERS) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.addEventListener("click", () => send(text));
    $("starters").append(button);
  }
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send($("message").value);
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send($("message").value);
  });
  $("message").addEventListener("input", fit);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running) stop();
  });
  $("stop").addEventListener("click", stop);
  $("clear").addEventListener("click", clear);
  $("reset").addEventListener("click", reset);
  $("parameters").addEventListener("input", countChanged);
  $("turns").addEventListener("click", copyOrRepeat);
  addEventListener("resize", fit);
  fit();
  countChanged(); // a reloaded page may have kept its fields
}

/** The message's field is as high as its text, within bounds that the style sets. */
function fit() {
  const field = $("message");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

function stop() {
  running?.abort();
}

function clear() {
  stop();
  turns.length = 0;
  for (const view of $("turns").querySelectorAll(".turn")) view.remove();
  $("empty").hidden = false;
  $("message").focus();
}

// --- parameters ---------------------------------------------------------------------------------------------------

function parameters() {
  const given = {};
  for (const name of NUMBERS) {
    const field = $(`p-${name}`);
    if (field.value !== "") given[name] = field.valueAsNumber;
  }
  return given;
}

function countChanged() {
  const count = Object.keys(parameters()).length + ($("p-system").value.trim() ? 1 : 0);
  $("changed").textContent = count ? `(${count} set)` : "";
}

function reset() {
  for (const name of [...NUMBERS, "system"]) $(`p-${name}`).value = "";
  countChanged();
}

// --- asking -------------------------------------------------------------------------------------------------------

function send(text) {
  if (running || !text.trim()) return;
  for (const name of NUMBERS) {
    const field = $(`p-${name}`);
    if (!field.checkValidity()) {
      $("parameters").open = true;
      field.reportValidity();
      return;
    }
  }
  $("message").value = "";
  fit();
  addTurn({ role: "user", content: text.trim() });
  answer();
}

function messages() {
  const system = $("p-system").value.trim();
  const said = turns.filter((turn) => turn.content && !turn.failed).map(({ role, content }) => ({ role, content }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

async function answer() {
  const body = { model, messages: messages(), stream: true, stream_options: { include_usage: true }, ...parameters() };
  const turn = addTurn({ role: "assistant", content: "", reasoning: "" });
  running = new AbortController();
  busy(true);
  const begun = performance.now();
  try {
    await read(turn, await request("v1/chat/completions", { method: "POST", body, signal: running.signal }));
    sayFacts(turn, begun);
  } catch (error) {
    if (error.name === "AbortError") note(turn, "Stopped.");
    else fail(turn, error);
  } finally {
    running = null;
    busy(false);
    show(turn);
    turn.view.classList.remove("coming");
    $("announce").textContent = turn.failed ? "" : `The answer has ended. ${turn.content.slice(0, 2000)}`;
  }
}

/** Take what comes into the turn, until the stream says that it has ended. */
async function read(turn, stream) {
  for await (const data of events(stream)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(event.error.message);
    if (event.usage) turn.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) continue;
    const thought = choice.delta.reasoning ?? choice.delta.reasoning_content ?? "";
    turn.reasoning += thought;
    if (choice.delta.content) turn.content += choice.delta.content;
    if (choice.delta.content || thought) turn.first ??= performance.now();
    if (choice.finish_reason) turn.finish = choice.finish_reason;
    showSoon(turn);
  }
  throw new Problem("The answer broke off before its end.");
}

function sayFacts(turn, begun) {
  const tokens = turn.usage?.completion_tokens ?? 0;
  const first = (turn.first ?? performance.now()) - begun;
  const rest = (performance.now() - (turn.first ?? begun)) / 1000;
  const facts = [`${tokens} tokens`, `first after ${Math.round(first)} ms`];
  if (tokens > 1 && rest > 0) facts.push(`${((tokens - 1) / rest).toFixed(0)} tokens/s`);
  if (turn.usage?.prompt_tokens_details?.cached_tokens) facts.push(`${turn.usage.prompt_tokens_details.cached_tokens} prompt tokens cached`);
  if (turn.finish === "length") facts.push("cut at the length limit");
  note(turn, facts.join(" · "));
}

function fail(turn, error) {
  if (!(error instanceof Problem)) console.error(error); // a fault of this page
  turn.failed = !turn.content;
  const said = document.createElement("p");
  said.className = "error";
  said.setAttribute("role", "alert");
  said.textContent = error instanceof Problem ? error.message : "This page has a fault; the browser's console says which.";
  turn.view.append(said);
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  document.body.classList.toggle("busy", is);
}

// --- showing ------------------------------------------------------------------------------------------------------

function addTurn(turn) {
  const view = document.createElement("article");
  view.className = `turn ${turn.role}`;
  view.setAttribute("aria-label", turn.role === "user" ? "You" : "Answer");
  const text = document.createElement("div");
  text.className = "text";
  if (turn.role === "user") text.textContent = turn.content;
  else view.classList.add("coming");
  view.append(text);
  turn.view = view;
  turns.push(turn);
  $("empty").hidden = true;
  $("turns").append(view);
  view.scrollIntoView({ block: "end" });
  return turn;
}

/** At most once a frame, however many events come. */
function showSoon(turn) {
  turn.frame ??= requestAnimationFrame(() => show(turn));
  if (document.hidden) show(turn); // nothing is drawn: frames do not come
}

function show(turn) {
  cancelAnimationFrame(turn.frame);
  turn.frame = undefined;
  const all = $("turns");
  const follows = all.scrollHeight - all.scrollTop - all.clientHeight < NEAR;
  if (turn.reasoning) showThinking(turn);
  render(turn.view.querySelector(".text"), turn.content);
  if (follows) all.scrollTop = all.scrollHeight;
}

function showThinking(turn) {
  let fold = turn.view.querySelector("details");
  if (!fold) {
    fold = document.createElement("details");
    fold.className = "thinking";
    fold.append(document.createElement("summary"), document.createElement("div"));
    turn.view.prepend(fold);
  }
  fold.firstChild.textContent = turn.content || turn.finish ? "Thoughts" : "Thinking…";
  fold.lastChild.textContent = turn.reasoning;
}

/** The line under an answer: facts, and what can be done with it. */
function note(turn, text) {
  const line = document.createElement("p");
  line.className = "facts";
  const said = document.createElement("span");
  said.textContent = text;
  line.append(said);
  for (const [what, label] of [["answer", "Copy"], ["again", "Again"]]) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: label });
    button.dataset.copies = what;
    line.append(button);
  }
  turn.view.append(line);
}

async function copyOrRepeat(event) {
  const button = event.target.closest("button[data-copies]");
  if (!button) return;
  const index = turns.findIndex((turn) => turn.view.contains(button));
  if (button.dataset.copies === "again") {
    again(index);
    return;
  }
  const text = button.dataset.copies === "code" ? button.nextElementSibling.textContent : turns[index].content;
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not let this page copy";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

/** Another answer in this one's place; what came after it goes. */
function again(index) {
  if (running) return;
  for (const turn of turns.splice(index)) turn.view.remove();
  answer();
}
