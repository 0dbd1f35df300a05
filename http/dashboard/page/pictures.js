// Pictures that go with the next message: dropped on the chat, pasted into the field, or chosen. They are sent as they are.

const MOST = 8; // with one message
const LARGEST = 15_000_000; // bytes of one
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"];
const $ = (id) => document.getElementById(id);

let chosen = []; // data: addresses

export function start() {
  $("message").addEventListener("paste", (event) => take(event, event.clipboardData));
  const chat = $("chat");
  chat.addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    chat.classList.add("target");
  });
  for (const name of ["dragleave", "drop"]) chat.addEventListener(name, () => chat.classList.remove("target"));
  chat.addEventListener("drop", (event) => take(event, event.dataTransfer));
  $("pictures").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    chosen.splice([...$("pictures").children].indexOf(button), 1);
    show();
    $("message").focus();
  });
}

/** What was chosen, which is then none any more. */
export function taken() {
  const found = chosen;
  chosen = [];
  show();
  return found;
}

export const any = () => chosen.length > 0;

/** These are to go with the next message again. */
export function put(pictures) {
  chosen = [...pictures];
  show();
}

async function take(event, data) {
  const files = [...data.files].filter((file) => file.type.startsWith("image/"));
  if (!files.length) return; // a text: the browser knows what to do with it
  event.preventDefault();
  $("picture-error").textContent = "";
  for (const file of files) {
    if (!TYPES.includes(file.type)) say(`${file.name} is ${file.type}; pictures are PNG, JPEG, WebP, GIF, BMP or TIFF.`);
    else if (file.size > LARGEST) say(`${file.name} has more than ${LARGEST / 1e6} million bytes.`);
    else if (chosen.length >= MOST) say(`At most ${MOST} pictures go with a message.`);
    else chosen.push(await address(file));
  }
  show();
}

function say(text) {
  $("picture-error").textContent = text;
}

function address(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function show() {
  $("pictures").replaceChildren(...chosen.map((url, index) => {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", title: "Leave it out" });
    button.setAttribute("aria-label", `Leave out picture ${index + 1}`);
    button.append(image(url));
    return button;
  }));
  $("pictures").hidden = !chosen.length;
}

/** A picture as it is seen in the conversation. */
export function image(url) {
  return Object.assign(document.createElement("img"), { src: url, alt: "a picture" });
}

/** A message's content as the API takes it: a text, or parts with its pictures. */
export function content({ content: text, pictures }) {
  if (!pictures?.length) return text;
  const parts = pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}
