// A client of `routewright serve` in JavaScript, with fetch alone: an answer, a stream, an error.
//
//     ROUTEWRIGHT_URL=http://127.0.0.1:8080 ROUTEWRIGHT_KEY=sk_test_... node client.mjs

const url = process.env.ROUTEWRIGHT_URL ?? "http://127.0.0.1:8080";
const ask = { messages: [{ role: "user", content: "Why is the sky blue?" }], budget: { maxCostUsd: 0.01 } };
const tries = 4;

/** Send a request, and again where the server says that it may help. With a key it is answered, and paid, once. */
async function post(path, body, key) {
  const headers = { Authorization: `Bearer ${process.env.ROUTEWRIGHT_KEY}`, "Content-Type": "application/json" };
  if (key) headers["Idempotency-Key"] = key;
  for (let attempt = 1; ; attempt++) {
    const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
    if (answer.ok) return answer;
    if (![429, 500, 502, 504].includes(answer.status) || attempt === tries) {
      const { error } = await answer.json();
      throw Object.assign(new Error(`${error.code}: ${error.message}`), { error });
    }
    const seconds = Number(answer.headers.get("Retry-After") ?? 2 ** (attempt - 1));
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

/** The server-sent events of a stream. */
async function* events(answer) {
  let waiting = "";
  for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
    waiting += piece;
    const blocks = waiting.split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
      if (fields.event) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

const answer = await (await post("/v1/route", { ...ask, goal: "quality" }, crypto.randomUUID())).json();
console.log(answer.output);
console.log("by", answer.routing.selected_model, "for", answer.routing.cost_usd, "dollars");

for await (const [name, data] of events(await post("/v1/route", { ...ask, stream: true }))) {
  if (name === "output.delta") process.stdout.write(data.text);
  if (name === "route.fallback" && data.restart) console.log("\n(from the start, by another model)");
  if (name === "error") throw new Error(data.error.message);
}
console.log();

try {
  await post("/v1/route", { ...ask, budget: { maxCostUsd: 1e-9 } });
} catch ({ error }) {
  console.log(error.code, "-", error.detail.suggestion);
}
