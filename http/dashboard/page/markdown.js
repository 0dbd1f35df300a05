// The model's text as DOM nodes. markdown-it reads it; whatever it says becomes an element made here or a text node.
// Nothing is parsed as HTML, no picture is asked for, and links lead to http and https only.

import MarkdownIt from "./markdown-it.js";

const reader = new MarkdownIt({ html: false, linkify: true });
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.disable("image");

// tokens of markdown-it by name, and the element that each opens
const ELEMENTS = {
  paragraph: "p", blockquote: "blockquote", bullet_list: "ul", ordered_list: "ol", list_item: "li", strong: "strong", em: "em", s: "s",
  table: "table", thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td",
};
const TASK = /^\[([ xX])\]\s+/;

/** Bring `parent` to show `text`, leaving alone the blocks that it shows already. */
export function render(parent, text) {
  const blocks = split(reader.parse(text, {}));
  blocks.forEach((tokens, index) => {
    const mark = signature(tokens);
    const old = parent.children[index];
    if (old?.blockSource === mark) return;
    const made = build(tokens)[0];
    made.blockSource = mark;
    if (old) old.replaceWith(made);
    else parent.append(made);
  });
  while (parent.children.length > blocks.length) parent.lastElementChild.remove();
}

/** The tokens of each block that stands in no other. */
function split(tokens) {
  const blocks = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) blocks.push([]);
    blocks.at(-1).push(token);
    depth += token.nesting;
  }
  return blocks;
}

/** All that is shown of a block, as one text: equal for equal blocks. */
function signature(tokens) {
  const seen = ({ type, tag, attrs, content, info, hidden, children }) => [type, tag, attrs, content, info, hidden, children?.map(seen)];
  return JSON.stringify(tokens.map(seen));
}

/** Tokens as nodes: what one opens holds all until it is closed. */
function build(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const token of tokens) {
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) open.push(within(open.at(-1), token));
    else open.at(-1).append(...leaf(token, open.at(-1)));
  }
  return [...root.childNodes];
}

/** The element that a token opens, put into `parent`; `parent` itself where nothing is to be seen of it. */
function within(parent, token) {
  const name = token.type.replace(/_open$/, "");
  if (token.hidden) return parent; // the paragraphs of a tight list
  if (name === "link") return link(parent, token.attrGet("href"));
  const made = make(name === "heading" ? `h${Math.min(6, Number(token.tag[1]) + 2)}` : ELEMENTS[name]);
  if (name === "ordered_list") made.start = token.attrGet("start") ?? 1;
  const align = /text-align:(\w+)/.exec(token.attrGet("style"));
  if (align) made.dataset.align = align[1];
  if (name === "table") {
    const box = make("div", made);
    box.className = "table";
    box.tabIndex = 0; // it scrolls sideways
    parent.append(box);
  } else parent.append(made);
  return made;
}

function leaf(token, parent) {
  if (token.type === "inline") return inline(token.children, parent);
  if (token.type === "fence" || token.type === "code_block") return [code(token)];
  if (token.type === "hr") return [make("hr")];
  if (token.type === "code_inline") return [make("code", token.content)];
  if (token.type === "hardbreak" || token.type === "softbreak") return ["\n"]; // lines are kept as they are
  return [token.content];
}

/** A line's nodes; at the beginning of a list's item `[ ]` and `[x]` are boxes. */
function inline(children, parent) {
  const task = parent.tagName === "LI" && !parent.hasChildNodes() && TASK.exec(children[0]?.content ?? "");
  if (!task) return build(children);
  const box = make("input");
  box.type = "checkbox";
  box.disabled = true;
  box.checked = task[1] !== " ";
  parent.className = "task";
  children[0].content = children[0].content.slice(task[0].length);
  return [box, ...build(children)];
}

function make(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}

function code(token) {
  const made = make("div");
  made.className = "code";
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.dataset.copies = "code";
  made.append(copy, make("pre", make("code", token.content.replace(/\n$/, ""))));
  made.lastElementChild.tabIndex = 0; // it scrolls sideways
  const [language] = token.info.trim().split(/\s+/);
  if (language) made.dataset.language = language;
  return made;
}

/** A link to another page; nothing but http and https becomes one, the rest stays text. */
function link(parent, target) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return parent;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return parent;
  const made = make("a");
  made.href = url.href;
  made.rel = "noopener noreferrer";
  made.target = "_blank";
  parent.append(made);
  return made;
}
