// LangChain for JavaScript: models, streams, tools, reports and thinking, by its packages for OpenAI and Anthropic.
import { ChatAnthropic } from "@langchain/anthropic";
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { z } from "zod";
import { HELLO, OSLO, REPORT, ROOT, THOUGHT, WEATHER, WIDTH, told } from "./told.mjs";

const openai = { apiKey: "none", maxRetries: 0, timeout: 60000, configuration: { baseURL: `${ROOT}/v1` } };
const anthropic = { apiKey: "none", maxRetries: 0, maxTokens: 3000, anthropicApiUrl: ROOT };
const budget = { thinking: { type: "enabled", budget_tokens: 1024 } };
const made = {
  chat: (model) => new ChatOpenAI({ model, ...openai }),
  responses: (model) => new ChatOpenAI({ model, useResponsesApi: true, ...openai }),
  anthropic: (model) => new ChatAnthropic({ model, ...anthropic, ...(model === "thinker" ? budget : {}) }),
};
const weather = tool(async () => "7 degrees", { name: "get_weather", description: "The weather.", schema: z.object({ city: z.string() }) });
const Report = z.object({ city: z.enum(["Oslo"]), degrees: z.literal(7) });

async function whole(stream) {
  let message;
  for await (const part of stream) message = message ? message.concat(part) : part;
  return message;
}

for (const [name, of] of Object.entries(made)) {
  const model = of("client");
  const equipped = model.bindTools([weather]);
  await told(`${name} message`, HELLO, async () => (await model.invoke("@hello")).text);
  await told(`${name} stream`, [HELLO, true], async () => {
    const message = await whole(await model.stream("@hello"));
    return [message.text, message.usage_metadata.output_tokens > 0];
  });
  await told(`${name} trip`, [OSLO, WEATHER], async () => {
    const call = await whole(await equipped.stream("@tool"));
    const result = new ToolMessage({ content: "7 degrees", tool_call_id: call.tool_calls[0].id });
    return [call.tool_calls[0].args, (await equipped.invoke([new HumanMessage("@tool"), call, result])).text];
  });
  const form = { name: "Report", method: name === "anthropic" ? "functionCalling" : "jsonSchema" }; // Claude's lacks const
  await told(`${name} report`, REPORT, () => model.withStructuredOutput(Report, form).invoke(name === "anthropic" ? "@report" : "@any"));
  await told(`${name} thinking`, HELLO, async () => {
    const thinker = of("thinker");
    const thought = await thinker.invoke("@think");
    if (!JSON.stringify(thought).includes(THOUGHT)) return thought;
    return (await thinker.invoke([new HumanMessage("@think"), thought, new HumanMessage("@hello")])).text;
  });
  await told(`${name} error`, "`nobody` does not exist", () => of("nobody").invoke("@hello"));
}
await told("vectors", [WIDTH, WIDTH], async () => {
  const vectors = await new OpenAIEmbeddings({ model: "embedder", ...openai }).embedDocuments(["a", "b"]);
  return vectors.map((vector) => vector.length);
});
