// OpenAI's agents for JavaScript: runs, streams, tools, outputs, turns, thinking and sessions, of chats and responses.
import { Agent, OpenAIChatCompletionsModel, OpenAIConversationsSession, OpenAIResponsesModel } from "@openai/agents";
import { run, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { CITY, HELLO, REPORT, ROOT, TOP_P, WEATHER, told } from "./told.mjs";

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${ROOT}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const parameters = { ...CITY, additionalProperties: true };
const tools = [tool({ name: "get_weather", description: "The weather.", strict: false, parameters, execute: async () => "7 degrees" })];
const outputType = z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) });
const made = {
  chat: (model) => new OpenAIChatCompletionsModel(client, model),
  responses: (model) => new OpenAIResponsesModel(client, model),
};

async function streamed(agent, prompt) {
  const found = await run(agent, prompt, { stream: true });
  for await (const event of found) if (event.type === "error") throw event.error;
  await found.completed;
  return found.finalOutput;
}

for (const [name, of] of Object.entries(made)) {
  const agent = new Agent({ name: "a", model: of("client"), tools });
  await told(`${name} run`, HELLO, async () => (await run(agent, "@hello")).finalOutput);
  await told(`${name} stream`, HELLO, () => streamed(agent, "@hello"));
  await told(`${name} steps`, WEATHER, async () => (await run(agent, "@tool")).finalOutput);
  await told(`${name} streamed steps`, WEATHER, () => streamed(agent, "@tool"));
  await told(`${name} report`, REPORT, async () => (await run(new Agent({ name: "a", model: of("client"), outputType }), "@any")).finalOutput);
  await told(`${name} turns`, HELLO, async () => {
    const { history } = await run(agent, "@tool");
    return (await run(agent, [...history, { role: "user", content: "@hello" }])).finalOutput;
  });
  await told(`${name} steps behind thinking`, ["reasoning", WEATHER], async () => {
    const found = await run(new Agent({ name: "a", model: of("thinker"), tools }), "@ponder");
    return [found.history[1].type, found.finalOutput];
  });
  const wrong = new Agent({ name: "a", model: of("client"), modelSettings: { topP: 9 } });
  await told(`${name} error`, TOP_P, async () => (await run(wrong, "@hello")).finalOutput);
}
await told("session", 2, async () => {
  const session = new OpenAIConversationsSession({ client });
  await run(new Agent({ name: "a", model: made.responses("client") }), "@hello", { session });
  return (await session.getItems()).length;
});
process.exit(0); // what its connections still wait for
