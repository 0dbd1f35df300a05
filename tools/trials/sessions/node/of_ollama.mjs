// ollama: chats, texts, tools, forms, thinking, vectors, what it lists, aborts and errors.
import { Ollama } from "ollama";
import { HELLO, OSLO, ROOT, THOUGHT, TOOL, WEATHER, WIDTH, all, asked, lacking, told } from "./told.mjs";

const client = new Ollama({ host: ROOT });
const [model, tools] = ["client", [{ type: "function", function: TOOL }]];
const chat = (word, more) => ({ model, messages: asked(word), ...more });
const counts = ["done_reason", "total_duration", "load_duration", "prompt_eval_count", "eval_count", "eval_duration"];

await told("list", [true, []], async () => {
  const { models } = await client.list();
  return [models.some((one) => one.name === model), lacking(models[0], "modified_at", "size", "digest", "details")];
});
await told("ps", [], async () => lacking((await client.ps()).models[0], "name", "size_vram", "expires_at", "details"));
await told("show", true, async () => (await client.show({ model })).capabilities.includes("tools"));
await told("chat", [HELLO, []], async () => {
  const made = await client.chat(chat("hello"));
  return [made.message.content, lacking(made, "created_at", ...counts)];
});
await told("streamed chat", [HELLO, []], async () => {
  const parts = await all(await client.chat(chat("hello", { stream: true })));
  return [parts.map((part) => part.message.content).join(""), lacking(parts.at(-1), ...counts)];
});
await told("text", HELLO, async () => (await client.generate({ model, prompt: "@hello" })).response);
await told("streamed text", HELLO, async () => {
  return (await all(await client.generate({ model, prompt: "@hello", stream: true }))).map((part) => part.response).join("");
});
await told("call's trip", [OSLO, WEATHER], async () => {
  const { message } = await client.chat(chat("tool", { tools }));
  const messages = [...asked("tool"), message, { role: "tool", tool_name: "get_weather", content: "7 degrees" }];
  return [message.tool_calls[0].function.arguments, (await client.chat({ model, messages, tools })).message.content];
});
await told("streamed call", OSLO, async () => {
  const parts = await all(await client.chat(chat("tool", { tools, stream: true })));
  return parts.find((part) => part.message.tool_calls).message.tool_calls[0].function.arguments;
});
await told("report", OSLO, async () => {
  const format = { type: "object", properties: { city: { enum: ["Oslo"] } }, required: ["city"], additionalProperties: false };
  return JSON.parse((await client.chat(chat("any", { format }))).message.content);
});
await told("thinking", THOUGHT, async () => (await client.chat(chat("think", { model: "thinker", think: true }))).message.thinking);
await told("vectors", [WIDTH, WIDTH], async () => {
  return (await client.embed({ model: "embedder", input: ["a", "b"] })).embeddings.map((vector) => vector.length);
});
await told("abort", "AbortError", async () => {
  const stream = await client.chat(chat("hello", { stream: true }));
  for await (const part of stream) if (part.message.content) stream.abort();
});
await told("pull", "success", async () => (await client.pull({ model })).status);
await told("error", ["ResponseError", 404], async () => {
  const error = await client.chat(chat("hello", { model: "nobody" })).catch((found) => found);
  return [error.name, error.status_code];
});
