// The model's text as DOM nodes. Whatever it says becomes an element made here or a text node; nothing is parsed as HTML.

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const INLINE = /(?<!`)(`+)(?!`)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s])?)\*\*|__([^\s_](?:[\s\S]*?[^\s])?)__(?!\w)|\*([^\s*](?:[^*]*[^\s*])?)\*|(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)|\[([^\]\n]+)\]\(([^\s()<>]+)\)|(https?:\/\/[^\s<>"'`]+[^\s<>"'`.,;:!?)\]])/g;
const DEEPEST = 6; // lists and emphasis within one another
const LONGEST = 8000; // characters of a paragraph in which emphasis is looked for: what never closes costs their square

/** Cut into blocks; one that is not closed yet ends with the text. */
export function blocks(text) {
  const found = [];
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const taken = takeFence(lines, at) ?? takeSingle(line) ?? takeRun(lines, at);
    found.push(taken.block);
    at += taken.lines;
  }
  return found;
}

function takeFence(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open) return null;
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(open[1]) && !lines[end].trim().replaceAll(open[1][0], ""))) end += 1;
  return { block: { kind: "code", language: open[2], text: lines.slice(at + 1, end).join("\n") }, lines: end + 1 - at };
}

function takeSingle(line) {
  const heading = HEADING.exec(line);
  if (heading) return { block: { kind: "heading", level: heading[1].length, text: heading[2] }, lines: 1 };
  if (RULE.test(line)) return { block: { kind: "rule" }, lines: 1 };
  return null;
}

/** Lines of one kind up to a blank one, or to where another kind begins. */
function takeRun(lines, at) {
  const kind = QUOTE.test(lines[at]) ? "quote" : ITEM.test(lines[at]) ? "list" : "text";
  let end = at;
  const run = [];
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      const next = lines[end + 1] ?? "";
      if (kind === "list" && (ITEM.test(next) || /^\s{2,}\S/.test(next))) continue; // a loose list
      break;
    }
    if (FENCE.test(line) && kind !== "list") break;
    if (kind !== "quote" && end > at && (takeSingle(line) || QUOTE.test(line) || (kind === "text" && ITEM.test(line)))) break;
    if (kind === "quote" && !QUOTE.test(line)) break;
    if (kind === "list" && end > at && isOtherList(lines[at], line)) break;
    run.push(kind === "quote" ? QUOTE.exec(line)[1] : line);
  }
  return { block: { kind, text: run.join("\n") }, lines: Math.max(1, end - at) };
}

/** An item that is not indented further than the list's first, and numbered where that is not, or the reverse. */
function isOtherList(first, line) {
  const [own, other] = [ITEM.exec(first), ITEM.exec(line)];
  return other !== null && other[1].length <= own[1].length && /\d/.test(own[2]) !== /\d/.test(other[2]);
}

/** Bring `parent` to show `text`, leaving alone the blocks that it shows already. */
export function render(parent, text) {
  const wanted = blocks(text);
  wanted.forEach((block, index) => {
    const mark = JSON.stringify(block);
    const old = parent.children[index];
    if (old?.blockSource === mark) return;
    const made = element(block, 0);
    made.blockSource = mark;
    if (old) old.replaceWith(made);
    else parent.append(made);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function element(block, depth) {
  if (block.kind === "code") return code(block);
  if (block.kind === "heading") return make(`h${Math.min(6, block.level + 2)}`, ...inline(block.text, 0));
  if (block.kind === "rule") return make("hr");
  if (block.kind === "list") return list(block.text.split("\n"), depth);
  if (block.kind === "quote") {
    const within = depth < DEEPEST ? blocks(block.text).map((one) => element(one, depth + 1)) : [block.text];
    return make("blockquote", ...within);
  }
  return make("p", ...inline(block.text, 0));
}

function code(block) {
  const made = make("div");
  made.className = "code";
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.dataset.copies = "code";
  made.append(copy, make("pre", make("code", block.text)));
  made.lastElementChild.tabIndex = 0; // it scrolls sideways
  if (block.language) made.dataset.language = block.language;
  return made;
}

/** Items by their indentation: what is indented further belongs to the item before. */
function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const made = make(ordered ? "ol" : "ul");
  if (ordered) made.start = Number.parseInt(first[2], 10);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && (item[1].length <= first[1].length || !items.length)) items.push({ text: item[3], within: [] });
    else if (item || items.at(-1).within.length) items.at(-1).within.push(line);
    else items.at(-1).text += `\n${line.trim()}`;
  }
  for (const item of items) {
    const children = inline(item.text, 0);
    if (item.within.length && depth < DEEPEST) children.push(list(item.within, depth + 1));
    else if (item.within.length) children.push(item.within.join("\n"));
    made.append(make("li", ...children));
  }
  return made;
}

/** Text as nodes: code, strong, em, links; line breaks where the text has them. */
function inline(text, depth) {
  if (text.length > LONGEST) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(at, found.index), ...span(found, depth));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes.filter((node) => node !== "");
}

function span([all, , codeText, strong1, strong2, em1, em2, label, target, bare], depth) {
  if (depth >= DEEPEST) return [all];
  if (codeText !== undefined) return [make("code", codeText.replace(/^ (.+) $/, "$1"))];
  if (strong1 ?? strong2) return [make("strong", ...inline(strong1 ?? strong2, depth + 1))];
  if (em1 ?? em2) return [make("em", ...inline(em1 ?? em2, depth + 1))];
  return [link(bare ?? target, bare ?? label) ?? all];
}

/** A link to another page; nothing but http and https becomes one. */
function link(target, label) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const made = make("a", label);
  made.href = url.href;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
  return made;
}
