// The models: what they can do, what they cost and will cost, and whether they can be called.

import { Badge, Choice, Dialog, Empty, Field, Loaded, Pairs, Table, Time, View } from "../lib.js";
import { column, count, go, html, ms, numeric, setParams, to, useRead } from "../lib.js";

const takes = (modality) => (model) => model.modalities?.includes(modality);
const is = (status) => (model) => model.availability.status === status;
const ABILITIES = { __proto__: null,
  image: ["Images", takes("image")],
  audio: ["Audio", takes("audio")],
  file: ["Files", takes("file")],
  tool: ["Tools", takes("tool")],
  json: ["JSON schema", (model) => model.structured_output],
  reasoning: ["Reasoning", (model) => model.reasoning],
};
const STATES = { __proto__: null,
  available: ["Available", is("available")],
  degraded: ["Degraded", is("degraded")],
  unavailable: ["Unavailable", is("unavailable")],
  changes: ["New prices ahead", (model) => model.price_changes?.length],
  withdrawn: ["Withdrawn by a date", (model) => model.deprecated_at],
};
const KINDS = { available: "good", degraded: "warn", unavailable: "bad" };
const dollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 6 });
const price = (amount) => (amount == null ? "–" : dollars.format(amount)); // exact, where usd rounds
const optionsOf = (all) => [["", "Any"], ...Object.entries(all).map(([name, [text]]) => [name, text])];
const abilitiesOf = (model) => Object.values(ABILITIES).flatMap(([text, has]) => (has(model) ? text : [])).join(", ");
const State = ({ of: { status } }) => html`<${Badge} kind=${KINDS[status]}>${status}<//>`;

function fits(model, { q = "", provider, ability, state }) {
  const text = [model.id, model.display_name, ...(model.tags || [])].join(" ").toLowerCase();
  return q.toLowerCase().split(/\s+/).every((word) => text.includes(word))
    && (!provider || model.provider === provider)
    && (!ability || ABILITIES[ability]?.[1](model)) && (!state || STATES[state]?.[1](model));
}

/** What changes for a model, and when. */
const Dates = ({ of: model }) => html`${(model.price_changes || []).map(({ starts, pricing_per_1m: prices }) =>
    html`<div>${starts}: ${price(prices.input_usd)} and ${price(prices.output_usd)}</div>`)}
  ${model.deprecated_at && html`<div>${model.deprecated_at.slice(0, 10)}: withdrawn</div>`}`;

const columnsOf = (params) => [
  column("Model", ({ id }) => html`<a href=${to(`models/${id}`, params)}>${id}</a>`),
  column("State", (model) => html`<${State} of=${model.availability} />`),
  column("Abilities", abilitiesOf),
  numeric("Context, tokens", (model) => count(model.context_window)),
  numeric("Output, tokens", (model) => count(model.max_output_tokens)),
  numeric("Input, per 1M", (model) => price(model.pricing_per_1m?.input_usd)),
  numeric("Output, per 1M", (model) => price(model.pricing_per_1m?.output_usd)),
  column("Dates", (model) => html`<${Dates} of=${model} />`),
];

/** Prices and what they are for: those of now and later, each with its tiers for long inputs, services and batches. */
function pricesOf(model) {
  const all = [["Today", model.pricing_per_1m], ...(model.price_changes || []).map((change) =>
    [`From ${change.starts}`, change.pricing_per_1m])];
  return all.filter(([, prices]) => prices).flatMap(([when, prices]) => [
    [when, prices],
    ...(prices.tiers || []).map((tier) => [`${when}, inputs above ${count(tier.above_tokens)} tokens`, tier]),
    ...(prices.service_tiers || []).map((tier) => [`${when}, tier ${tier.tier}`, tier]),
    [`${when}, batch`, { input_usd: prices.batch_input_usd, output_usd: prices.batch_output_usd }],
  ].filter(([, { input_usd: input }]) => input != null));
}

const PRICES = [
  column("Prices per 1M tokens", ([when]) => when),
  ...Object.entries({ input: "Input", output: "Output", cached_input: "Cached input", cache_write: "Cache write",
    reasoning: "Reasoning", audio_input: "Audio" }).map(([part, name]) =>
    numeric(name, ([, prices]) => price(prices[`${part}_usd`]))),
];

function Details({ model, circuit }) {
  const facts = {
    State: html`<${State} of=${model.availability} />
      ${circuit && ` not called for ${ms(circuit.probe_in_s * 1000)} after ${circuit.fault || "a fault"}`}`,
    Regions: model.availability.regions.join(", ") || "not known",
    Abilities: abilitiesOf(model) || "text only",
    "Does not support": model.unsupported?.join(", "),
    Context: `${count(model.context_window)} tokens, ${count(model.max_output_tokens)} of output`,
    "Time to the first token": model.ttft_s && ms(model.ttft_s * 1000),
    Speed: model.tokens_per_s && `${count(model.tokens_per_s)} tokens per second`,
    "Quality among all models, 0 to 1": model.quality,
    Tags: model.tags?.join(", "),
    Released: model.released_at?.slice(0, 10),
    "Withdrawn by its vendor": model.deprecated_at && html`<${Time} at=${model.deprecated_at} />`,
    Use: (model.disabled && "never chosen (disabled)") || (model.free_tier && "if a request names it (free tier)"),
  };
  return html`<${Pairs} rows=${Object.entries(facts).filter(([, value]) => value)} />
    <${Table} caption="Prices" columns=${PRICES} rows=${pricesOf(model)}
      empty="Its prices are not known: it is not used where money is limited." />
    <p><a href=${to("traces", { filter: `model=${model.id}` })}>Its traces</a></p>`;
}

export function Models({ parts, params }) {
  const models = useRead("router.models", {}, { every: 60 });
  const status = useRead("router.status", {}, { every: 60 });
  const id = parts.join("/");
  return html`<${View} title="Models"><section><${Loaded} of=${models}>${(data) => {
    const chosen = data.find((model) => model.id === id);
    const circuit = status.data?.circuits.find((row) => row.model === id);
    const rows = data.filter((model) => fits(model, params));
    const providers = [...new Set(data.map((model) => model.provider))].sort();
    const columns = columnsOf(params);
    const empty = html`No model fits; <a href=${to("models")}>show all</a>.`;
    return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
        <${Field} label="Search" type="search" value=${params.q || ""}
          onInput=${(event) => setParams({ q: event.target.value }, { replace: true })} />
        <${Choice} label="Provider" name="provider" options=${[["", "Any"], ...providers]} />
        <${Choice} label="Ability" name="ability" options=${optionsOf(ABILITIES)} />
        <${Choice} label="State" name="state" options=${optionsOf(STATES)} />
        <p class="note" aria-live="polite">${count(rows.length)} of ${count(data.length)} models</p></form>
      ${data.every(is("unavailable")) && html`<p class="note">No provider is set up in this process, so no model is
        available in it.</p>`}
      <${Table} caption="Models" columns=${columns} rows=${rows} keyOf=${(model) => model.id} empty=${empty} />
      ${id && html`<${Dialog} title=${chosen?.display_name || id} key=${id} onClose=${() => go("models", params)}>
        ${chosen ? html`<p><code>${id}</code></p><${Details} model=${chosen} circuit=${circuit} />`
          : html`<${Empty}>The catalogue has no model <code>${id}</code>.<//>`}<//>`}`;
  }}<//></section><//>`;
}
