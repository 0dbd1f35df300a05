// Anthropic's SDK: messages, whole and streamed, tools, thinking, schemas, counts, errors.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { CITY, HELLO, OSLO, REPORT, ROOT, THOUGHT, TOP_P, WEATHER, all, asked, lacking, told } from "./told.mjs";

const client = new Anthropic({ baseURL: ROOT, apiKey: "none", maxRetries: 0, timeout: 60000 });
const body = (word, more) => ({ model: "client", max_tokens: 200, messages: asked(word), ...more });
const thinking = { model: "thinker", max_tokens: 3000, thinking: { type: "enabled", budget_tokens: 1024 } };
const tools = [{ name: "get_weather", description: "The weather.", input_schema: CITY }];
const inputSchema = z.object({ city: z.string() });
const runnable = [betaZodTool({ name: "get_weather", description: "The weather.", inputSchema, run: () => "7 degrees" })];
const called = (message) => message.content.find((block) => block.type === "tool_use").input;

await told("models", ["client", []], async () => {
  const one = (await all(client.models.list({ limit: 1 })))[0];
  return [one.id, lacking(one, "capabilities", "created_at", "display_name", "max_input_tokens", "max_tokens", "type")];
});
await told("message", [HELLO, [], []], async () => {
  const made = await client.messages.create(body("hello"));
  const counts = ["cache_creation", "cache_read_input_tokens", "inference_geo", "server_tool_use", "service_tier"];
  const { text, citations } = made.content[0];
  return [text, citations, lacking({ ...made, ...made.usage }, "container", "stop_details", "stop_sequence", ...counts)];
});
await told("stream", HELLO, () => client.messages.stream(body("hello")).finalText());
await told("call", OSLO, async () => called(await client.messages.create(body("tool", { tools }))));
await told("streamed call", OSLO, async () => called(await client.messages.stream(body("tool", { tools })).finalMessage()));
for (const stream of [false, true])
  await told(`toolRunner, stream ${stream}`, WEATHER, async () => {
    const made = await client.beta.messages.toolRunner(body("tool", { tools: runnable, stream })).runUntilDone();
    return made.content.at(-1).text;
  });
await told("thinking", [THOUGHT, "string"], async () => {
  const { thinking: thought, signature } = (await client.messages.create(body("think", thinking))).content[0];
  return [thought.trim(), typeof signature];
});
await told("streamed thinking", THOUGHT, async () => {
  return (await client.messages.stream(body("think", thinking)).finalMessage()).content[0].thinking;
});
await told("turns behind thinking", HELLO, async () => {
  const { content } = await client.messages.create(body("think", thinking));
  const messages = [...asked("think"), { role: "assistant", content }, ...asked("hello")];
  return (await client.messages.create(body("", { ...thinking, messages }))).content.at(-1).text;
});
await told("report", REPORT, async () => {
  const format = zodOutputFormat(z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) }));
  return (await client.messages.parse(body("any", { output_config: { format } }))).parsed_output;
});
await told("count", true, async () => (await client.messages.countTokens({ model: "client", messages: asked("hello") })).input_tokens > 0);
await told("edits", [], async () => {
  const edits = { context_management: { edits: [{ type: "clear_tool_uses_20250919" }] } };
  const made = client.beta.messages.stream(body("hello", { betas: ["context-management-2025-06-27"], ...edits }));
  return (await made.finalMessage()).context_management.applied_edits;
});
await told("stop", ["stop_sequence", "model"], async () => {
  const made = await client.messages.create(body("hello", { stop_sequences: ["model"] }));
  return [made.stop_reason, made.stop_sequence];
});
await told("abort", "APIUserAbortError", async () => {
  const stream = client.messages.stream(body("hello"));
  stream.on("text", () => stream.abort());
  return await stream.finalMessage().catch((error) => error.constructor.name);
});
await told("error", [400, "invalid_request_error", "string"], async () => {
  const error = await client.messages.create(body("hello", { top_p: 9 })).catch((found) => found);
  return [error.status, error.error.error.type, typeof error.requestID];
});
await told("streamed error", TOP_P, () => client.messages.stream(body("hello", { top_p: 9 })).finalMessage());
await told("batch", HELLO, async () => {
  let batch = await client.messages.batches.create({ requests: [{ custom_id: "a", params: body("hello") }] });
  while (batch.processing_status !== "ended") batch = await client.messages.batches.retrieve(batch.id);
  const [line] = await all(await client.messages.batches.results(batch.id));
  return line.result.message.content[0].text;
});
