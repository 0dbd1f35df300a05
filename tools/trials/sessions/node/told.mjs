// What all sessions by node have in common: each tells a line of JSON a step.
export const ROOT = process.argv[2];
export const HELLO = "Hello from the model, and more of it.", WEATHER = "It is 7 degrees in Oslo.", THOUGHT = "I ponder it.";
export const OSLO = { city: "Oslo" }, REPORT = { city: "Oslo", degrees: 7 }, WIDTH = 32;
export const TOP_P = "must be greater than 0 and at most 1"; // of an error
export const asked = (word) => [{ role: "user", content: `@${word}` }];
export const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const TOOL = { name: "get_weather", description: "The weather.", parameters: CITY };

// Its name, and what came in the place of what is expected, or null; a text is expected somewhere in what came.
export async function told(name, expected, step) {
  let got;
  try {
    got = await step();
  } catch (error) {
    got = `${error.name}: ${error.message}`;
  }
  const same = JSON.stringify(got) === JSON.stringify(expected);
  const holds = same || (typeof expected === "string" && String(got).includes(expected));
  console.log(JSON.stringify([name, holds ? null : (JSON.stringify(got) ?? String(got)).slice(0, 600)]));
}

export async function all(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

// Which of these fields an object lacks, though the client's types say that it has them.
export const lacking = (object, ...names) => names.filter((name) => object[name] === undefined);
