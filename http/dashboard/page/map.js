// The actors and the lanes between them, drawn in the order in which a request goes round:
//     frontend ─► renderer
//        ▲           ▼
//     detokenizer ◄─ scheduler ⇄ worker (below it)

import { amount, rate } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 400;
const CARD = { width: 136, height: 44, gap: 8 };
const ROW_GAP = 46;
const COLUMNS = [2, WIDTH - CARD.width - 2];
const PLACES = { frontend: [0, 0], renderer: [1, 0], detokenizer: [0, 1], scheduler: [1, 1], worker: [1, 2], others: [0, 2] };
const DASH = 12; // length of one dash and its gap: how far a lane's animation moves
const TOP = 8;
const SPREAD = 9; // between lanes that run up or down
const still = matchMedia("(prefers-reduced-motion: reduce)");

const cards = new Map(); // name → its elements
const lines = new Map(); // "source>target" → its elements
let sums = null; // the text that says how much flows in all
let drawn = null; // the names that are drawn

export function drawMap(actors, lanes) {
  const names = actors.map((actor) => actor.name).join(" ");
  if (names !== drawn) build(actors, lanes);
  drawn = names;
  for (const actor of actors) {
    const { group, facts } = cards.get(actor.name);
    group.dataset.state = actor.state;
    const text = actor.state === "ready" ? `${amount(actor.waiting)} waiting · ${rate(actor.rate)}/s` : actor.state;
    if (facts.textContent !== text) facts.textContent = text;
  }
  const all = lanes.reduce((sum, lane) => sum + lane.rate, 0);
  if (sums.textContent !== rate(all)) sums.textContent = rate(all);
  for (const lane of lanes) flow(lines.get(`${lane.source}>${lane.target}`), lane.rate);
}

function make(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Where each card stands: cards of one kind below one another, rows as high as their highest stack. Kinds that are not
 *  known here share one stack. */
function layOut(actors) {
  const stacks = new Map();
  for (const actor of actors) {
    const stack = actor.kind in PLACES ? actor.kind : "others";
    stacks.set(stack, [...(stacks.get(stack) ?? []), actor.name]);
  }
  const tall = (kind) => (stacks.get(kind)?.length ?? 0) * (CARD.height + CARD.gap) - CARD.gap;
  const heights = [0, 1, 2].map((row) => Math.max(0, ...Object.keys(PLACES).filter((kind) => PLACES[kind][1] === row).map(tall)));
  const tops = heights.map((_, row) => heights.slice(0, row).reduce((sum, one) => sum + one + ROW_GAP, TOP));
  const places = new Map();
  for (const [kind, names] of stacks) {
    const [column, row] = PLACES[kind];
    const top = tops[row] + (heights[row] - tall(kind)) / 2;
    names.forEach((name, index) => places.set(name, { x: COLUMNS[column], y: top + index * (CARD.height + CARD.gap), column, row, index }));
  }
  return { places, height: tops[2] + heights[2] + TOP };
}

function build(actors, lanes) {
  const map = document.getElementById("map");
  map.replaceChildren();
  cards.clear();
  lines.clear();
  const { places, height } = layOut(actors);
  map.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  for (const lane of lanes) {
    const path = make("path", { class: "lane", d: curve(places.get(lane.source), places.get(lane.target)) });
    path.append(make("title", {}, `${lane.source} to ${lane.target}`));
    map.append(path);
    const moving = path.animate([{ strokeDashoffset: DASH }, { strokeDashoffset: 0 }], { duration: 1000, iterations: Infinity });
    moving.pause();
    lines.set(`${lane.source}>${lane.target}`, { path, moving });
  }
  sums = make("text", { class: "sum large", x: 14, y: height - 30 });
  map.append(sums, make("text", { class: "sum", x: 14, y: height - 14 }, `batches of messages a second, ${lanes.length} lanes`));
  for (const actor of actors) {
    const { x, y } = places.get(actor.name);
    const facts = make("text", { class: "facts", x: 12, y: 33 });
    const box = make("rect", { width: CARD.width, height: CARD.height, rx: 9 });
    const mark = make("circle", { class: "mark", cx: CARD.width - 14, cy: 15, r: 4 });
    const name = make("text", { class: "name", x: 12, y: 19 }, actor.name);
    const group = make("g", { class: `actor ${actor.kind}`, transform: `translate(${x} ${y})` }, box, mark, name, facts);
    map.append(group);
    cards.set(actor.name, { group, facts });
  }
}

/** From card to card. The two directions between two cards run beside one another. */
function curve(from, to) {
  const down = to.row > from.row;
  if (from.column !== to.column) {
    const right = to.column > from.column;
    const y = right ? 14 : 30;
    const [x1, x2] = right ? [from.x + CARD.width, to.x] : [from.x, to.x + CARD.width];
    const bend = (x2 - x1) / 2;
    return `M${x1} ${from.y + y}C${x1 + bend} ${from.y + y} ${x2 - bend} ${to.y + y} ${x2} ${to.y + y}`;
  }
  const x = from.x + CARD.width * (down ? 0.56 : 0.2);
  const [x1, x2] = [x + SPREAD * (from.index % 5), x + SPREAD * (to.index % 5)]; // side by side behind others of a stack
  const [y1, y2] = down ? [from.y + CARD.height, to.y] : [from.y, to.y + CARD.height];
  const bend = (y2 - y1) / 2;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}

/** Width and speed grow with the logarithm: one message a second is seen beside a thousand. */
function flow({ path, moving }, messages) {
  const strength = Math.log2(1 + messages);
  path.setAttribute("stroke-width", (1.2 + Math.min(5, strength * 0.5)).toFixed(1));
  path.classList.toggle("active", messages > 0);
  if (messages > 0 && !still.matches) {
    moving.updatePlaybackRate(0.6 + strength * 0.35);
    if (moving.playState !== "running") moving.play();
  } else if (moving.playState === "running") {
    moving.pause();
  }
}
