// One turn of the conversation as it is seen: text, thoughts, and the line of facts and buttons under it.

import { render } from "./markdown.js";
import { image } from "./pictures.js";
import { Problem } from "./sse.js";

const NEAR = 60; // pixels from the end within which the conversation follows the answer
const $ = (id) => document.getElementById(id);

/** Show a turn {role, content} at the end of the conversation; `coming` if its text is still to come. */
export function add(turn, coming) {
  const view = document.createElement("article");
  view.className = `turn ${turn.role}`;
  view.classList.toggle("coming", coming);
  view.setAttribute("aria-label", turn.role === "user" ? "You" : "Answer");
  const text = document.createElement("div");
  text.className = "text";
  view.append(text);
  if (turn.role === "user") {
    text.textContent = turn.content;
    if (turn.pictures?.length) text.prepend(...turn.pictures.map(image));
    view.append(buttons([["edit", "Edit"]]));
  }
  turn.view = view;
  $("empty").hidden = true;
  $("turns").append(view);
  view.scrollIntoView({ block: "end" });
}

/** At most once a frame, however many events come. */
export function showSoon(turn) {
  turn.frame ??= requestAnimationFrame(() => show(turn));
  if (document.hidden) show(turn); // nothing is drawn: frames do not come
}

export function show(turn) {
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
export function note(turn, text) {
  turn.facts = text;
  const line = buttons([["answer", "Copy"], ["again", "Again"]]);
  const said = document.createElement("span");
  said.textContent = text;
  line.prepend(said);
  turn.view.append(line);
}

function buttons(labels) {
  const line = document.createElement("p");
  line.className = "facts";
  for (const [what, label] of labels) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: label });
    button.dataset.copies = what;
    line.append(button);
  }
  return line;
}

export function fail(turn, error) {
  if (!(error instanceof Problem)) console.error(error); // a fault of this page
  turn.failed = !turn.content;
  const said = document.createElement("p");
  said.className = "error";
  said.setAttribute("role", "alert");
  said.textContent = error instanceof Problem ? error.message : "This page has a fault; the browser's console says which.";
  turn.view.append(said);
}

export async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not let this page copy";
  }
  setTimeout(() => (button.textContent = label), 1500);
}
