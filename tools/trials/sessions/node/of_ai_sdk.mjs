// Vercel's AI SDK: texts, streams, tools over several steps and turns, objects, errors, by each of its providers.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createCohere } from "@ai-sdk/cohere";
import { createMistral } from "@ai-sdk/mistral";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embed, generateText, rerank, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { HELLO, ROOT, TOP_P, WEATHER, WIDTH, told } from "./told.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const at = (version) => ({ baseURL: `${ROOT}/${version}`, apiKey: "none" });
const openai = createOpenAI(at("v1"));
const cohere = createCohere(at("v2"));
const models = {
  compatible: createOpenAICompatible({ name: "x", ...at("v1"), includeUsage: true, supportsStructuredOutputs: true })("client"),
  chat: openai.chat("client"),
  responses: openai.responses("client"),
  anthropic: createAnthropic(at("v1"))("client"),
  cohere: cohere("client"),
  mistral: createMistral(at("v1"))("client"),
};
const tools = {
  get_weather: tool({ inputSchema: z.object({ city: z.string() }), execute: async () => "7 degrees" }),
};
const report = Output.object({ schema: z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) }) });

async function streamed(options) {
  const answer = streamText({ ...options, onError() {} });
  for await (const part of answer.fullStream) if (part.type === "error") throw part.error;
  return answer;
}

for (const [name, model] of Object.entries(models)) {
  const headers = name === "mistral" ? { "user-agent": "mistral-client-ai" } : {}; // which it says of streams alone
  const plain = { model, headers, prompt: "@hello" };
  const steps = { ...plain, prompt: "@tool", tools, stopWhen: stepCountIs(3) };
  const turns = (messages) => [{ role: "user", content: "@tool" }, ...messages, { role: "user", content: "@hello" }];
  await told(`${name} text`, HELLO, async () => (await generateText(plain)).text);
  await told(`${name} stream`, HELLO, async () => (await streamed(plain)).text);
  await told(`${name} streamed usage`, true, async () => (await (await streamed(plain)).usage).outputTokens > 0);
  await told(`${name} steps`, WEATHER, async () => (await generateText(steps)).text);
  await told(`${name} streamed steps`, WEATHER, async () => (await streamed(steps)).text);
  await told(`${name} turns`, HELLO, async () => {
    const first = await generateText(steps);
    return (await generateText({ model, headers, tools, messages: turns(first.response.messages) })).text;
  });
  await told(`${name} report`, 7, async () => (await generateText({ model, prompt: "@any", output: report })).output.degrees);
  const wrong = { ...plain, topP: 9, maxRetries: 0 };
  await told(`${name} error`, TOP_P, async () => (await generateText(wrong)).text);
}
await told("vectors", WIDTH, async () => (await embed({ model: openai.embedding("embedder"), value: "a" })).embedding.length);
const ranked = { model: cohere.reranking("embedder"), documents: ["a", "b"], query: "a", topN: 1 };
await told("ranking", 0, async () => (await rerank(ranked)).ranking[0].originalIndex);
