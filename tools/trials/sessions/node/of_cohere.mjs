// Cohere's SDK, both of its versions: chats, calls, thinking, forms, vectors, ranks, models, errors.
import { CohereClient, CohereClientV2 } from "cohere-ai";
import { HELLO, OSLO, ROOT, THOUGHT, TOOL, WEATHER, WIDTH, all, asked, told } from "./told.mjs";

const at = { environment: ROOT, token: "none" };
const [client, first] = [new CohereClientV2(at), new CohereClient(at)];
const [model, tools] = ["client", [{ type: "function", function: TOOL }]];
const ask = async (word, more) => (await client.chat({ model, messages: asked(word), ...more }, { maxRetries: 0 })).message;
const streamed = async (word, more) => all(await client.chatStream({ model, messages: asked(word), ...more }));
const called = (text) => JSON.parse(text);
const ranked = { model: "embedder", query: "a", documents: ["a", "b"], topN: 1 };

await told("models", [true, ["embed", "rerank"]], async () => {
  const { models } = await first.models.list({ endpoint: "chat" });
  return [models.some((one) => one.name === model), (await first.models.get("embedder")).endpoints];
});
await told("chat", HELLO, async () => (await ask("hello")).content[0].text);
await told("streamed chat", [HELLO, true], async () => {
  const events = await streamed("hello");
  const texts = events.filter((event) => event.type === "content-delta").map((event) => event.delta.message.content.text);
  return [texts.join(""), events.at(-1).delta.usage.tokens.outputTokens > 0];
});
await told("call's trip", [OSLO, WEATHER], async () => {
  const said = await ask("tool", { tools });
  const result = { role: "tool", toolCallId: said.toolCalls[0].id, content: "7 degrees" };
  const then = await ask("", { tools, messages: [...asked("tool"), said, result] });
  return [called(said.toolCalls[0].function.arguments), then.content[0].text];
});
await told("streamed call", OSLO, async () => {
  const parts = (await streamed("tool", { tools })).filter((event) => /^tool-call-(start|delta)$/.test(event.type));
  return called(parts.map((event) => event.delta.message.toolCalls.function.arguments).join(""));
});
await told("thinking", THOUGHT, async () => (await ask("think", { model: "thinker", thinking: { type: "enabled" } })).content[0].thinking);
await told("report", OSLO, async () => {
  const jsonSchema = { type: "object", properties: { city: { enum: ["Oslo"] } }, required: ["city"], additionalProperties: false };
  return called((await ask("any", { responseFormat: { type: "json_object", jsonSchema } })).content[0].text);
});
await told("vectors", [WIDTH, WIDTH], async () => {
  const asks = { model: "embedder", texts: ["a", "b"], inputType: "search_query", embeddingTypes: ["float"] };
  return (await client.embed(asks)).embeddings.float.map((vector) => vector.length);
});
await told("ranks", [0], async () => (await client.rerank(ranked)).results.map((one) => one.index));
await told("first version's chat", HELLO, async () => (await first.chat({ model, message: "@hello" })).text);
await told("first version's stream", HELLO, async () => (await all(await first.chatStream({ model, message: "@hello" }))).at(-1).response.text);
await told("error", "p must be greater than 0", () => ask("hello", { p: 9 }));
