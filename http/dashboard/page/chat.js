// The conversation: kept in this browser, answered as a stream, one answer at a time.

import * as pictures from "./pictures.js";
import { events, Problem, request } from "./sse.js";
import * as store from "./store.js";
import * as views from "./turns.js";

const STARTERS = ["What is the capital of France?", "What happens when an actor dies?", "How do I set an API key?"];
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];
const KEEP_MS = 1000; // how often an answer is kept while it comes
const $ = (id) => document.getElementById(id);

const turns = []; // {role, content, pictures, reasoning, facts, view}; pictures are too many bytes to be kept
let id = ""; // of the conversation, once something was said in it
let running = null; // the AbortController of the answer that is coming
let model = "";
let keptAt = 0;
let editing = null; // the place of the message that the field's text will replace

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
    if (event.key !== "Escape") return;
    stop();
    endEdit();
  });
  $("stop").addEventListener("click", stop);
  $("clear").addEventListener("click", clear);
  $("delete").addEventListener("click", remove);
  $("export").addEventListener("click", () => store.download({ model, turns }));
  $("conversations").addEventListener("change", () => open($("conversations").value));
  addEventListener("pagehide", keep);
  $("reset").addEventListener("click", reset);
  $("parameters").addEventListener("input", countChanged);
  $("turns").addEventListener("click", act);
  addEventListener("resize", fit);
  pictures.start();
  fit();
  countChanged(); // a reloaded page may have kept its fields
  open(sessionStorage.getItem("actorserve-conversation") ?? store.all()[0]?.id ?? "");
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

// --- conversations ------------------------------------------------------------------------------------------------

/** Show one that is kept; none for an unknown id. */
function open(wanted) {
  stop();
  endEdit();
  keep();
  for (const turn of turns.splice(0)) turn.view.remove();
  const kept = store.all().find((one) => one.id === wanted);
  id = kept?.id ?? "";
  sessionStorage.setItem("actorserve-conversation", id);
  $("empty").hidden = false;
  for (const { role, content = "", reasoning = "", facts } of kept?.turns ?? []) {
    const turn = addTurn({ role, content, reasoning });
    if (role === "user") continue;
    views.show(turn);
    views.note(turn, facts ?? "Broken off: the page was left.");
  }
  list();
}

function clear() {
  open("");
  $("message").focus();
}

function remove() {
  stop();
  for (const turn of turns.splice(0)) turn.view.remove(); // before it is left, which would keep it
  if (id) store.forget(id);
  open("");
  $("message").focus();
}

/** Keep what was said so far. */
function keep() {
  if (!turns.length) return;
  keptAt = performance.now();
  id ||= crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // the former is there on secure sites only
  sessionStorage.setItem("actorserve-conversation", id);
  const said = turns.filter((turn) => !turn.failed).map(({ role, content, reasoning, facts }) => ({ role, content, reasoning, facts }));
  const fits = store.keep({ id, at: Date.now(), model, turns: said });
  $("keep-error").textContent = fits ? "" : "This browser has no room to keep this conversation: export it, or delete others.";
}

function list() {
  const options = store.all().map((one) => new Option(store.title(one), one.id, false, one.id === id));
  if (!id) options.unshift(new Option("New conversation", "", true, true));
  $("conversations").replaceChildren(...options);
  $("kept").hidden = options.length < 2 && !id;
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

function addTurn(turn, coming = false) {
  views.add(turn, coming);
  turns.push(turn);
  return turn;
}

// --- asking -------------------------------------------------------------------------------------------------------

function send(text) {
  if (running || !(text.trim() || pictures.any())) return;
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
  if (editing !== null) for (const turn of turns.splice(editing)) turn.view.remove();
  endEdit();
  addTurn({ role: "user", content: text.trim(), pictures: pictures.taken() });
  keep();
  list();
  answer();
}

function messages() {
  const system = $("p-system").value.trim();
  const said = turns.filter((turn) => (turn.content || turn.pictures?.length) && !turn.failed)
    .map((turn) => ({ role: turn.role, content: pictures.content(turn) }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

async function answer() {
  const body = { model, messages: messages(), stream: true, stream_options: { include_usage: true }, ...parameters() };
  const turn = addTurn({ role: "assistant", content: "", reasoning: "" }, true);
  running = new AbortController();
  busy(true);
  const begun = performance.now();
  try {
    await read(turn, await request("v1/chat/completions", { method: "POST", body, signal: running.signal }));
    sayFacts(turn, begun);
  } catch (error) {
    if (error.name === "AbortError") views.note(turn, "Stopped.");
    else views.fail(turn, error);
  } finally {
    running = null;
    busy(false);
    views.show(turn);
    turn.view.classList.remove("coming");
    if (turns.includes(turn)) keep(); // another conversation may have been opened meanwhile
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
    views.showSoon(turn);
    if (performance.now() - keptAt > KEEP_MS) keep();
  }
  throw new Problem("The answer broke off before its end.");
}

function sayFacts(turn, begun) {
  const tokens = turn.usage?.completion_tokens ?? 0;
  const first = (turn.first ?? performance.now()) - begun;
  const rest = (performance.now() - (turn.first ?? begun)) / 1000;
  const facts = [`${tokens} ${tokens === 1 ? "token" : "tokens"}`, `first after ${Math.round(first)} ms`];
  if (tokens > 1 && rest > 0) facts.push(`${((tokens - 1) / rest).toFixed(0)} tokens/s`);
  if (turn.usage?.prompt_tokens_details?.cached_tokens) facts.push(`${turn.usage.prompt_tokens_details.cached_tokens} prompt tokens cached`);
  if (turn.finish === "length") facts.push("cut at the length limit");
  views.note(turn, facts.join(" · "));
}

function busy(is) {
  $("send").hidden = is;
  $("stop").hidden = !is;
  document.body.classList.toggle("busy", is);
}

// --- what can be done with a turn -----------------------------------------------------------------------------------

/** A button within the conversation was pressed. */
async function act(event) {
  const button = event.target.closest("button[data-copies]");
  if (!button) return;
  const index = turns.findIndex((turn) => turn.view.contains(button));
  const what = button.dataset.copies;
  if (what === "again") again(index);
  else if (what === "edit") edit(index);
  else await views.copy(button, what === "code" ? button.nextElementSibling.textContent : turns[index].content);
}

/** Another answer in this one's place; what came after it goes. */
function again(index) {
  if (running) return;
  for (const turn of turns.splice(index)) turn.view.remove();
  answer();
}

/** A message goes back into the field, to be said otherwise; what came after it goes when it is sent. */
function edit(index) {
  if (running) return;
  editing = index;
  $("message").value = turns[index].content;
  pictures.put(turns[index].pictures ?? []);
  fit();
  $("message").focus();
  turns.forEach((turn, place) => turn.view.classList.toggle("replaced", place >= index));
}

function endEdit() {
  editing = null;
  for (const turn of turns) turn.view.classList.remove("replaced");
}
