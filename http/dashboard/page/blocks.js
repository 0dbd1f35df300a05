// KV memory as a picture: a cell for a block, or for some blocks where there are more than cells.

const $ = (id) => document.getElementById(id);
const GAP = 1; // pixels between cells, where they are large enough
const FAINTEST = 0.4; // one block of many is seen, too

/** `used` and `cached` hold one hex digit a cell: the share of its blocks, f is all. */
export function drawBlocks(engine) {
  const { blocks_total: total, blocks_free: free, used, cached } = engine;
  const held = total - free;
  $("kv-text").textContent = total ? `${held} of ${total} in use (${((100 * held) / total).toFixed(held ? 1 : 0)} %)` : "the worker has not said how many";
  const canvas = $("kv");
  const width = canvas.clientWidth;
  if (!width || !used.length) return;
  const columns = Math.ceil(Math.sqrt((used.length * width) / canvas.clientHeight));
  const lines = Math.ceil(used.length / columns);
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(canvas.clientHeight * scale);
  const [cellWidth, cellHeight] = [canvas.width / columns, canvas.height / lines];
  const gap = Math.min(cellWidth, cellHeight) > 4 * scale ? GAP * scale : 0;
  const draw = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const colours = { free: style.getPropertyValue("--free"), cached: style.getPropertyValue("--cached"), used: style.getPropertyValue("--used") };
  const paint = (colour, share, index) => {
    if (!share) return;
    const [column, line] = [index % columns, Math.floor(index / columns)];
    draw.globalAlpha = FAINTEST + (1 - FAINTEST) * share;
    draw.fillStyle = colour;
    draw.fillRect(column * cellWidth, line * cellHeight, cellWidth - gap, cellHeight - gap);
  };
  for (let index = 0; index < used.length; index += 1) {
    paint(colours.free, 1, index);
    paint(colours.cached, Number.parseInt(cached[index], 16) / 15, index);
    paint(colours.used, Number.parseInt(used[index], 16) / 15, index);
  }
  draw.globalAlpha = 1;
}
