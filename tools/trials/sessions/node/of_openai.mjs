// openai: chats, responses and what is kept of them, files and batches, vectors, a WebSocket, errors.
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { HELLO, OSLO, REPORT, ROOT, THOUGHT, TOOL, TOP_P, WEATHER, WIDTH, all, asked, lacking, told } from "./told.mjs";

const client = new OpenAI({ baseURL: `${ROOT}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const [model, Report] = ["client", z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) })];
const chat = (word, more) => ({ model, messages: asked(word), ...more });
const response = (word, more) => ({ model, input: `@${word}`, ...more });
const tools = [{ type: "function", function: TOOL }];
const runnable = [{ type: "function", function: { ...TOOL, parse: JSON.parse, function: () => "7 degrees" } }];
const { completions } = client.chat;

await told("models", ["client", []], async () => {
  const one = await client.models.retrieve(model);
  return [one.id, lacking(one, "created", "object", "owned_by")];
});
await told("chat", HELLO, async () => (await completions.create(chat("hello"))).choices[0].message.content);
await told("streamed chat", HELLO, () => completions.stream(chat("hello")).finalContent());
await told("usage", true, async () => {
  const stream = completions.stream(chat("hello", { stream_options: { include_usage: true } }));
  return (await stream.totalUsage()).completion_tokens > 0;
});
for (const stream of [false, true])
  await told(`runTools, stream ${stream}`, WEATHER, () => completions.runTools(chat("tool", { tools: runnable, stream })).finalContent());
await told("streamed call", OSLO, async () => {
  const { message } = (await completions.stream(chat("silent", { tools })).finalChatCompletion()).choices[0];
  return JSON.parse(message.tool_calls[0].function.arguments);
});
const form = { response_format: zodResponseFormat(Report, "report") };
await told("parsed chat", REPORT, async () => (await completions.parse(chat("any", form))).choices[0].message.parsed);
await told("streamed parsed chat", REPORT, async () => {
  return (await completions.stream(chat("any", form)).finalChatCompletion()).choices[0].message.parsed;
});
await told("abort", "AbortError", async () => {
  const stream = await completions.create(chat("hello", { stream: true, max_tokens: 200, ignore_eos: true }));
  for await (const part of stream) if (part.choices[0].delta.content) stream.controller.abort();
  return stream.controller.signal.reason.name;
});
await told("error", ["top_p", 400, null, "string"], async () => {
  const error = await completions.create(chat("hello", { top_p: 9 })).catch((found) => found);
  return [error.param, error.status, error.code, typeof error.requestID];
});
await told("streamed error", TOP_P, () => completions.stream(chat("hello", { top_p: 9 })).finalContent());

await told("response", [HELLO, []], async () => {
  const made = await client.responses.create(response("hello"));
  return [made.output_text, lacking(made, "error", "instructions", "metadata", "tools", "usage", "text", "reasoning")];
});
await told("streamed response", HELLO, async () => (await client.responses.stream(response("hello")).finalResponse()).output_text);
await told("parsed response", REPORT, async () => {
  return (await client.responses.parse(response("any", { text: { format: zodTextFormat(Report, "report") } }))).output_parsed;
});
await told("thinking", THOUGHT, async () => {
  const made = await client.responses.create({ model: "thinker", input: "@think", reasoning: { summary: "auto" } });
  return made.output[0].summary[0].text;
});
await told("response's call", WEATHER, async () => {
  const functions = [{ type: "function", ...TOOL, strict: false }];
  const first = await client.responses.create(response("silent", { tools: functions }));
  const output = { type: "function_call_output", call_id: first.output.at(-1).call_id, output: "7 degrees" };
  return (await client.responses.create({ model, tools: functions, previous_response_id: first.id, input: [output] })).output_text;
});
await told("background", [HELLO, HELLO], async () => {
  const { id } = await client.responses.create(response("hello", { background: true }));
  const streamed = await client.responses.stream({ response_id: id, starting_after: 1 }).finalResponse();
  return [streamed.output_text, (await client.responses.retrieve(id)).output_text];
});
await told("deleted", "404", async () => {
  const { id } = await client.responses.create(response("hello"));
  await client.responses.delete(id);
  return (await client.responses.retrieve(id)).status;
});
await told("conversation", ["user", "assistant"], async () => {
  const { id } = await client.conversations.create({});
  await client.responses.create(response("hello", { conversation: id }));
  return (await all(client.conversations.items.list(id, { order: "asc", limit: 1 }))).map((item) => item.role);
});
await told("WebSocket", HELLO, async () => {
  const socket = new ResponsesWS(client);
  const said = new Promise((end, fail) => {
    socket.on("error", fail);
    socket.on("response.completed", (event) => end(event.response.output[0].content[0].text));
  });
  socket.send({ type: "response.create", ...response("hello"), store: false });
  return said.finally(() => socket.close());
});
await told("batch", [HELLO, true], async () => {
  const line = { custom_id: "a", method: "POST", url: "/v1/chat/completions", body: chat("hello") };
  const file = await client.files.create({ file: await toFile(Buffer.from(JSON.stringify(line)), "lines.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({ input_file_id: file.id, endpoint: line.url, completion_window: "24h" });
  while (["validating", "in_progress", "finalizing"].includes(batch.status)) batch = await client.batches.retrieve(batch.id);
  const answer = JSON.parse(await (await client.files.content(batch.output_file_id)).text());
  return [answer.response.body.choices[0].message.content, (await client.files.delete(file.id)).deleted];
});
await told("vectors", [WIDTH, "number"], async () => {
  const { embedding } = (await client.embeddings.create({ model: "embedder", input: "a" })).data[0]; // asks for base64
  return [embedding.length, typeof embedding[0]];
});
