// Mistral's SDK: chats, calls, thinking, forms, vectors, models, errors. What has not the type it promises is an error.
import { Mistral } from "@mistralai/mistralai";
import { z } from "zod";
import { HELLO, OSLO, REPORT, ROOT, THOUGHT, TOOL, TOP_P, WEATHER, WIDTH, all, asked, told } from "./told.mjs";

const client = new Mistral({ serverURL: ROOT, apiKey: "none", timeoutMs: 60000 });
const [model, tools] = ["client", [{ type: "function", function: TOOL }]];
const chat = (word, more) => ({ model, messages: asked(word), ...more });
const message = async (word, more) => (await client.chat.complete(chat(word, more))).choices[0].message;
const deltas = async (word, more) => {
  return (await all(await client.chat.stream(chat(word, more)))).map((event) => event.data.choices[0]?.delta ?? {});
};
const called = (found) => JSON.parse(found.toolCalls[0].function.arguments);

await told("models", [true, true], async () => {
  const { capabilities } = await client.models.retrieve({ modelId: model });
  return [(await client.models.list()).data.some((one) => one.id === model), capabilities.functionCalling];
});
await told("chat", HELLO, async () => (await message("hello")).content);
await told("streamed chat", HELLO, async () => (await deltas("hello")).map((delta) => delta.content ?? "").join(""));
await told("call's trip", [OSLO, WEATHER], async () => {
  const first = await message("tool", { tools });
  const result = { role: "tool", toolCallId: first.toolCalls[0].id, name: "get_weather", content: "7 degrees" };
  const messages = [...asked("tool"), { ...first, role: "assistant" }, result];
  return [called(first), (await message("", { tools, messages })).content];
});
await told("streamed call", OSLO, async () => called((await deltas("tool", { tools })).find((delta) => delta.toolCalls)));
await told("thinking", THOUGHT, async () => {
  return (await message("think", { model: "thinker", promptMode: "reasoning" })).content[0].thinking[0].text;
});
await told("report", REPORT, async () => {
  const responseFormat = z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) });
  return (await client.chat.parse(chat("any", { responseFormat }))).choices[0].message.parsed;
});
await told("vectors", [WIDTH, WIDTH], async () => {
  return (await client.embeddings.create({ model: "embedder", inputs: ["a", "b"] })).data.map((one) => one.embedding.length);
});
await told("error", TOP_P, () => message("hello", { topP: 9 }));
await told("conversations", "these are OpenAI's", () => client.beta.conversations.start({ model, inputs: "@hello" }));
