// Numbers as people read them, and small graphs of how they went.

const POINTS = 60;
const SVG = "http://www.w3.org/2000/svg";

export function amount(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(0)}k`;
  return String(Math.round(value));
}

export function rate(value) {
  return value > 0 && value < 9.95 ? value.toFixed(1) : amount(value);
}

export function age(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

/** Add a value to a history and draw it. */
export function spark(svg, history, value) {
  history.push(value);
  if (history.length > POINTS) history.shift();
  if (!svg.firstChild) {
    svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 20`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(document.createElementNS(SVG, "polyline"));
  }
  const most = Math.max(1, ...history);
  const first = POINTS - history.length;
  const points = history.map((one, index) => `${first + index},${(19 - (18 * one) / most).toFixed(1)}`);
  svg.firstChild.setAttribute("points", points.join(" "));
}
