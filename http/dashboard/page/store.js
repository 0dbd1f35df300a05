// Conversations, kept in this browser: they survive a reload, and go when they are deleted. No server has them.

const PLACE = "actorserve-conversations";
const MOST = 50; // conversations; the oldest go first
const LARGEST = 2_000_000; // characters of all together: browsers keep about five million
const TITLE = 60;

/** All that are kept, the newest first: {id, at, model, turns: [{role, content, reasoning, facts}]}. */
export function all() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(kept) ? kept.filter((one) => Array.isArray(one?.turns)) : [];
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return []; // somebody else has written there
  }
}

/** Keep one as it is now, in front of the others. False if the browser has no room for it. */
export function keep(conversation) {
  const others = all().filter((one) => one.id !== conversation.id);
  const wanted = [conversation, ...others].slice(0, MOST);
  while (wanted.length > 1 && JSON.stringify(wanted).length > LARGEST) wanted.pop();
  return write(wanted);
}

export function forget(id) {
  write(all().filter((one) => one.id !== id));
}

function write(kept) {
  try {
    localStorage.setItem(PLACE, JSON.stringify(kept));
    return true;
  } catch (error) {
    if (error.name !== "QuotaExceededError") throw error;
    return false;
  }
}

/** What a list says of one: how it began. */
export function title({ turns }) {
  const text = (turns[0]?.content ?? "").replace(/\s+/g, " ");
  return text.length > TITLE ? `${text.slice(0, TITLE)}…` : text;
}

/** Give it to the person as a file that the API takes: a request's body with the conversation so far. */
export function download({ model, turns }) {
  const messages = turns.filter((turn) => turn.content).map(({ role, content }) => ({ role, content }));
  const file = new Blob([JSON.stringify({ model, messages }, null, 2)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = `conversation-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // when it has been written
}
