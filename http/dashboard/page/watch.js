// The one stream of statistics, and what is derived from it: rates, the table, deaths and recoveries.

import { drawBlocks } from "./blocks.js";
import { drawMap } from "./map.js";
import { age, amount, rate, spark } from "./numbers.js";
import { events, pause, Problem, request } from "./sse.js";

const AGAIN_MS = [500, 1000, 2000, 5000]; // before the stream is asked for again
const LATE_S = 2.5; // an actor that runs beats at least once a second
const LOGGED = 100; // lines that are kept
const $ = (id) => document.getElementById(id);

let before = null; // the event before this one
let last = null; // the newest one
const down = new Map(); // name → when its death was seen, ms

export async function watch() {
  for (let tries = 0; ; tries += 1) {
    let problem = null;
    try {
      for await (const data of events(await request("page/events"))) {
        tries = 0;
        take(JSON.parse(data));
      }
      setLink("waiting", "reconnecting");
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      problem = error;
      if (error.status) setLink("lost", "not watching");
      else if (tries < 2 || document.body.classList.contains("busy")) setLink("waiting", "reconnecting");
      else setLink("lost", "no connection");
      $("watch-error").textContent = error.status ? error.message : "";
      $("watch-error").hidden = !error.status;
    }
    await pause(problem, AGAIN_MS[Math.min(tries, AGAIN_MS.length - 1)]);
  }
}

document.addEventListener("recoloured", () => last && drawBlocks(last.engine));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => last && drawBlocks(last.engine));
new ResizeObserver(() => last && drawBlocks(last.engine)).observe($("kv"));

function setLink(state, text) {
  if ($("link").dataset.state === state) return; // it is read out when it changes
  $("link").dataset.state = state;
  $("link").lastElementChild.textContent = text;
}

function take(event) {
  event.lanes = event.lanes.map(([source, target, sent, waiting]) => ({ source, target, sent, waiting }));
  [before, last] = [last, event];
  $("watch-error").hidden = true;
  const seconds = before && event.at_s > before.at_s ? event.at_s - before.at_s : 0;
  const actors = event.actors.map((actor) => ({ ...actor, state: seen(actor), old: find(before, actor.name) }));
  const away = actors.filter((actor) => !["ready", "parked"].includes(actor.state));
  if (away.length) setLink(`not-${away.map((actor) => `${actor.name}-${actor.state}`).join("-")}`, `${away[0].name} is ${away[0].state}`);
  else setLink("ready", "all ready");
  $("link").classList.toggle("away", away.length > 0);
  for (const actor of actors) {
    actor.rate = seconds && actor.old ? Math.max(0, actor.received - actor.old.received) / seconds : 0;
    notice(actor);
  }
  const lanes = event.lanes.map((lane, index) => ({ ...lane, rate: laneRate(lane, before?.lanes[index], seconds) }));
  $("adapters").hidden = !event.adapters;
  $("adapters").textContent = event.adapters ? `adapters: ${event.adapters}` : "";
  drawRates(event.engine, before?.engine, seconds);
  drawTable(actors);
  drawMap(actors.filter((actor) => actor.kind !== "supervisor"), lanes);
  drawBlocks(event.engine);
}

/** What is seen of an actor from here: one that is late is stalled, long before it counts as hung. */
function seen(actor) {
  return actor.state === "ready" && actor.heartbeat_s > LATE_S ? "stalled" : actor.state;
}

function find(event, name) {
  return event?.actors.find((actor) => actor.name === name);
}

/** Records a second. A lane that moved too fast to be read has no count in that event. */
function laneRate(lane, old, seconds) {
  if (!seconds || lane.sent === null || old?.sent == null) return 0;
  return Math.max(0, lane.sent - old.sent) / seconds;
}

// --- rates --------------------------------------------------------------------------------------------------------

const histories = { tokens: [], prompts: [], running: [], waiting: [] };

/** Counters begin anew with a new scheduler: what they had before is not a rate. */
function drawRates(engine, old, seconds) {
  const grown = (name) => (seconds && old && engine[name] >= old[name] ? (engine[name] - old[name]) / seconds : 0);
  const now = { tokens: grown("generated"), prompts: grown("prompted"), running: engine.running, waiting: engine.waiting };
  for (const [name, value] of Object.entries(now)) {
    $(`r-${name}`).textContent = name === "tokens" || name === "prompts" ? rate(value) : amount(value);
    spark($(`s-${name}`), histories[name], value);
  }
  const asked = engine.prefix_queries;
  $("kv-hits").textContent = asked ? `prefix cache: ${Math.round((100 * engine.prefix_hits) / asked)} % of prompt tokens found` : "";
}

// --- the table ----------------------------------------------------------------------------------------------------

const rows = new Map();

function drawTable(actors) {
  for (const actor of actors) {
    if (!rows.has(actor.name)) rows.set(actor.name, addRow(actor.name));
    const cells = rows.get(actor.name);
    const texts = [
      actor.state, actor.pid ?? "–", amount(actor.waiting), rate(actor.rate), actor.restarts,
      age(actor.up_s), actor.heartbeat_s === null ? "–" : age(actor.heartbeat_s),
    ];
    texts.forEach((text, index) => {
      if (cells[index].textContent !== String(text)) cells[index].textContent = text;
    });
    cells[0].dataset.state = actor.state;
  }
  for (const [name, cells] of rows) {
    if (actors.some((actor) => actor.name === name)) continue;
    cells[0].parentElement.remove(); // another server listens here now
    rows.delete(name);
  }
}

function addRow(name) {
  const row = document.createElement("tr");
  row.dataset.actor = name;
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = name;
  row.append(head);
  const cells = Array.from({ length: 7 }, () => document.createElement("td"));
  row.append(...cells);
  $("table").append(row);
  return cells;
}

// --- deaths and recoveries ----------------------------------------------------------------------------------------

/** Compare an actor with how it was: a higher number of restarts is a death, READY after one a recovery. */
function notice(actor) {
  const old = actor.old;
  if (!old) return;
  const slept = actor.state === "sleeping" || old.state === "sleeping"; // to fall asleep and to wake is to begin anew
  if (slept && actor.state !== old.state) {
    if (actor.state === "sleeping") say("stands", actor.name, "sleeps");
    else if (actor.state === "ready") say("back", actor.name, "is awake");
  }
  const died = actor.restarts > old.restarts && !slept;
  if (died || (actor.state === "dead" && old.state !== "dead")) {
    if (!down.has(actor.name)) {
      say("died", actor.name, `died (pid ${old.pid ?? "unknown"}) after ${age(old.up_s)}`);
      down.set(actor.name, performance.now());
    }
  }
  if (down.has(actor.name) && actor.state === "ready" && actor.pid !== null) {
    const away = (performance.now() - down.get(actor.name)) / 1000;
    const took = away < 0.3 ? "at once" : `after ${away.toFixed(1)} s`;
    say("back", actor.name, `is back ${took} as pid ${actor.pid}; restart ${actor.restarts}`);
    down.delete(actor.name);
  }
  const stands = (state) => state === "stalled" || state === "stopped" || state === "hung";
  if (stands(actor.state) && !stands(states.get(actor.name))) say("stands", actor.name, `stands still (${actor.state})`);
  if (actor.state === "ready" && stands(states.get(actor.name)) && !died) say("back", actor.name, "goes on");
  states.set(actor.name, actor.state);
}

const states = new Map(); // as the page saw them last

function say(kind, name, text) {
  $("log").querySelector(".none")?.remove();
  const line = document.createElement("li");
  line.className = kind;
  line.dataset.actor = name;
  const time = document.createElement("time");
  time.dateTime = new Date().toISOString();
  time.textContent = new Date().toLocaleTimeString();
  const who = document.createElement("b");
  who.textContent = name;
  line.append(time, " ", who, ` ${text}`);
  $("log").prepend(line);
  while ($("log").children.length > LOGGED) $("log").lastElementChild.remove();
}
