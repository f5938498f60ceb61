// The models: what they can do, what they cost and will cost, and whether they can be called.

import { Badge, Dialog, Empty, Field, Loaded, Select, Table, Time, View } from "../lib.js";
import { count, go, html, ms, setParams, to, useRead } from "../lib.js";

const ABILITIES = {
  image: ["Images", (model) => model.modalities?.includes("image")],
  audio: ["Audio", (model) => model.modalities?.includes("audio")],
  file: ["Files", (model) => model.modalities?.includes("file")],
  tool: ["Tools", (model) => model.modalities?.includes("tool")],
  json: ["JSON schema", (model) => model.structured_output],
  reasoning: ["Reasoning", (model) => model.reasoning],
};
const STATES = {
  available: ["Available", (model) => model.availability.status === "available"],
  degraded: ["Degraded", (model) => model.availability.status === "degraded"],
  unavailable: ["Unavailable", (model) => model.availability.status === "unavailable"],
  changes: ["New prices ahead", (model) => model.price_changes?.length],
  withdrawn: ["Withdrawn by a date", (model) => model.deprecated_at],
};
const dollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 6 });
const exact = (amount) => (amount == null ? "–" : dollars.format(amount));
const KINDS = { available: "good", degraded: "warn", unavailable: "bad" };
const choices = (all, any) => [["", any], ...Object.entries(all).map(([name, [text]]) => [name, text])];
const abilitiesOf = (model) => Object.values(ABILITIES).filter(([, has]) => has(model)).map(([text]) => text).join(", ");
const State = ({ model }) => html`<${Badge} kind=${KINDS[model.availability.status]}>${model.availability.status}<//>`;

function isShown(model, { q = "", provider, ability, state }) {
  const text = [model.id, model.display_name, ...(model.tags || [])].join(" ").toLowerCase();
  return q.toLowerCase().split(/\s+/).every((word) => text.includes(word)) && (!provider || model.provider === provider)
    && (!ability || ABILITIES[ability]?.[1](model)) && (!state || STATES[state]?.[1](model));
}

const columnsOf = (params) => [
  { name: "Model", of: (model) => html`<a href=${to(`models/${model.id}`, params)}>${model.id}</a>` },
  { name: "State", of: (model) => html`<${State} model=${model} />` },
  { name: "Abilities", of: abilitiesOf },
  { name: "Context, tokens", kind: "number", of: (model) => count(model.context_window) },
  { name: "Output, tokens", kind: "number", of: (model) => count(model.max_output_tokens) },
  { name: "Input, per 1M", kind: "number", of: (model) => exact(model.pricing_per_1m?.input_usd) },
  { name: "Output, per 1M", kind: "number", of: (model) => exact(model.pricing_per_1m?.output_usd) },
  { name: "Dates", of: (model) => html`${(model.price_changes || []).map((change) =>
    html`<div>${change.starts}: ${exact(change.pricing_per_1m.input_usd)} and ${exact(change.pricing_per_1m.output_usd)}</div>`)}
    ${model.deprecated_at && html`<div>${model.deprecated_at.slice(0, 10)}: withdrawn</div>`}` },
];

/** Prices with what they are for: today's, those of long inputs, service tiers and batches, and coming ones. */
function pricesOf(model) {
  const rows = (pricing, when) => [
    [when, pricing],
    ...(pricing.tiers || []).map((tier) => [`${when}, inputs above ${count(tier.above_tokens)} tokens`, tier]),
    ...(pricing.service_tiers || []).map((tier) => [`${when}, tier ${tier.tier}`, tier]),
    ...(pricing.batch_input_usd != null ? [[`${when}, batch`, { input_usd: pricing.batch_input_usd, output_usd: pricing.batch_output_usd }]] : []),
  ];
  return [...(model.pricing_per_1m ? rows(model.pricing_per_1m, "Today") : []),
    ...(model.price_changes || []).flatMap((change) => rows(change.pricing_per_1m, `From ${change.starts}`))];
}

const price = (name, field) => ({ name, kind: "number", of: ([, prices]) => exact(prices[field]) });
const PRICES = [
  { name: "Prices per 1M tokens", of: ([when]) => when },
  price("Input", "input_usd"), price("Output", "output_usd"), price("Cached input", "cached_input_usd"),
  price("Cache write", "cache_write_usd"), price("Reasoning", "reasoning_usd"), price("Audio", "audio_input_usd"),
];

function Details({ model, circuit }) {
  const facts = {
    State: html`<${State} model=${model} /> ${circuit && `not called for ${ms(circuit.probe_in_s * 1000)} after ${circuit.fault || "a fault"}`}`,
    Regions: model.availability.regions.join(", ") || "not known",
    Abilities: abilitiesOf(model) || "text only",
    "Does not support": model.unsupported?.join(", "),
    Context: model.context_window && `${count(model.context_window)} tokens, ${count(model.max_output_tokens)} of output`,
    "Its name at the provider": model.provider_model_id,
    "Time to the first token": model.ttft_s != null && ms(model.ttft_s * 1000),
    Speed: model.tokens_per_s != null && `${count(model.tokens_per_s)} tokens per second`,
    "Quality among all models, 0 to 1": model.quality,
    "Counts tokens as": model.tokenizer,
    Tags: model.tags?.join(", "),
    Released: model.released_at?.slice(0, 10),
    "Withdrawn by its vendor": model.deprecated_at && html`<${Time} at=${model.deprecated_at} />`,
    Use: [model.free_tier && "only if a request names it (free tier)", model.disabled && "never chosen (disabled)"].filter(Boolean).join(", "),
  };
  return html`<dl class="about">${Object.entries(facts).filter(([, value]) => value).map(([name, value]) =>
      html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Table} caption="Prices" columns=${PRICES} rows=${pricesOf(model)} empty="Its prices are not known: it is not used where money is limited." />
    <p><a href=${to("traces", { filter: `model=${model.id}` })}>Its traces</a></p>`;
}

export function Models({ parts, params }) {
  const models = useRead("models", {}, { every: 60 });
  const status = useRead("status", {}, { every: 60 });
  const id = parts.join("/");
  const choose = (name) => (event) => setParams({ [name]: event.target.value });
  return html`<${View} title="Models"><section><${Loaded} of=${models}>${(data) => {
    const chosen = data.find((model) => model.id === id);
    const rows = data.filter((model) => isShown(model, params));
    const providers = [["", "All"], ...[...new Set(data.map((model) => model.provider))].sort()];
    return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
        <${Field} label="Search" type="search" value=${params.q || ""} onInput=${(event) => setParams({ q: event.target.value }, { replace: true })} />
        <${Select} label="Provider" value=${params.provider || ""} options=${providers} onChange=${choose("provider")} />
        <${Select} label="Ability" value=${params.ability || ""} options=${choices(ABILITIES, "Any")} onChange=${choose("ability")} />
        <${Select} label="State" value=${params.state || ""} options=${choices(STATES, "Any")} onChange=${choose("state")} />
        <p class="note" aria-live="polite">${count(rows.length)} of ${count(data.length)} models</p></form>
      ${data.every((model) => model.availability.status === "unavailable") && html`<p class="note">No provider is set up in this process, so no model is available in it.</p>`}
      <${Table} caption="Models" columns=${columnsOf(params)} rows=${rows} keyOf=${(model) => model.id}
        empty=${html`No model fits; <a href=${to("models")}>show all</a>.`} />
      ${id && html`<${Dialog} title=${chosen?.display_name || id} key=${id} onClose=${() => go("models", params)}>
        ${chosen ? html`<p><code>${id}</code></p><${Details} model=${chosen} circuit=${status.data?.circuits.find((row) => row.model === id)} />`
          : html`<${Empty}>The catalogue has no model <code>${id}</code>.<//>`}<//>`}`;
  }}<//></section><//>`;
}
