// The page's frame: model, colours, and which half is seen on a narrow screen.

import * as chat from "./chat.js";
import "./key.js";
import { pause, Problem, request } from "./sse.js";
import { watch } from "./watch.js";

const THEMES = ["system", "light", "dark"];
const MARKS = { system: "◐", light: "○", dark: "●" };
const AGAIN_MS = 2000;
const $ = (id) => document.getElementById(id);

// --- the model ----------------------------------------------------------------------------------------------------

/** Ask what is served until the server says it: it may be starting, or want a key first. */
async function findModel() {
  for (;;) {
    try {
      const { data } = await (await request("v1/models")).json();
      showModels(data.filter((model) => model.parent || model.id === model.root).map((model) => model.id));
      return;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      await pause(error, AGAIN_MS);
    }
  }
}

/** The first is asked, until another one is chosen. */
function showModels(names) {
  setModel(names[0]);
  if (names.length === 1) {
    $("model").textContent = names[0];
    return;
  }
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "The model that is asked");
  for (const name of names) choice.add(new Option(name));
  choice.addEventListener("change", () => setModel(choice.value));
  $("model").replaceChildren(choice);
}

function setModel(name) {
  document.title = `${name} · actorserve`;
  chat.setModel(name);
}

// --- colours and views --------------------------------------------------------------------------------------------

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = MARKS[theme];
  $("theme").setAttribute("aria-label", theme === "system" ? "Colours: as the system has them" : `Colours: ${theme}`);
  localStorage.setItem("actorserve-theme", theme);
  document.dispatchEvent(new Event("recoloured"));
}

let theme = localStorage.getItem("actorserve-theme");
if (!THEMES.includes(theme)) theme = "system";
setTheme(theme);
$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  setTheme(theme);
});

function setView(view) {
  $("main").dataset.view = view;
  for (const one of ["chat", "actors"]) $(`show-${one}`).setAttribute("aria-pressed", String(one === view));
}

for (const one of ["chat", "actors"]) $(`show-${one}`).addEventListener("click", () => setView(one));

// ------------------------------------------------------------------------------------------------------------------

chat.start();
await findModel();
watch();
