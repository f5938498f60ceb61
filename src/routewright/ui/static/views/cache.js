// The response cache: what it saves, what it holds, how its bound on wrong answers is kept, and why a request is a hit.

import { change } from "../api.js";
import { RANGES, Ranges, dayOf, timesOf } from "../chart.js";
import { Area, Empty, Field, Figure, Form, Here, Loaded, Section, Table, Time, View, bytes, column } from "../lib.js";
import { count, html, ms, numeric, percent, setParams, to, usd } from "../lib.js";
import { useContext, useOwner, useRead, useState } from "../lib.js";

const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const age = (seconds) => (seconds < 3600 ? ms(seconds * 1000) : `${tenths.format(seconds / 3600)} h`);
const TraceLink = ({ id }) => html`<a href=${to(`traces/${id}`)}>${id}</a>`;

const Savings = ({ report, stats = {} }) => html`<dl class="figures">
  <${Figure} name="Hit rate" value=${percent(report.hit_rate)}
    note="${count(report.hits)} hits, ${count(report.misses)} misses" />
  <${Figure} name="Saved" value=${usd(report.saved_usd)} note="what the answers cost at first" />
  <${Figure} name="Entries" value=${count(stats.entries)}
    note="${bytes(stats.size_bytes)} in ${count(stats.partitions)} partitions" />
  <${Figure} name="Oldest entry" value=${html`<${Time} at=${stats.oldest_at} />`} />
  <${Figure} name="One hit on each entry" value=${usd(stats.saves_usd)} note="would save this" />
</dl>`;

const agesOf = (hits) => [
  column("Age of the entry", (row) => (row.up_to_s === null ? "Older" : `Up to ${age(row.up_to_s)}`)),
  column("Hits", (row) => html`<div class="meter"><progress aria-label="Hits" max=${hits} value=${row.hits}></progress>
    ${count(row.hits)}, ${percent(row.hits / hits)}</div>`),
];

const Risk = ({ risk }) => (risk.lookups === 0
  ? html`<${Empty}>The newest ${count(risk.traces)} traces have no look-up.<//>`
  : html`<dl class="figures">
    <${Figure} name="Wrong answers, at most" value=${percent(risk.wrong_share)} note="estimate, of all look-ups" />
    <${Figure} name="Bound (max_error)" value=${risk.max_errors.map(percent).join(", ") || "–"}
      note=${risk.max_errors.length ? "of all look-ups" : "no similar question was near"} />
    <${Figure} name="Hits" value=${count(risk.hits)}
      note="of ${count(risk.lookups)} look-ups in the newest ${count(risk.traces)} traces" />
    <${Figure} name="Answered live to check" value=${count(risk.explored)}
      note="${percent(risk.explored / risk.lookups)} of look-ups" />
  </dl>`);

const NEAR = [
  column("Question", (row) => row.question),
  numeric("Similarity", (row) => row.similarity),
  column("Difference", (row) => row.refused_by || "–"),
  column("Compared, no difference", (row) => row.compared.join(", ") || "–"),
  numeric("Wrong, at most", (row) => percent(row.risk)),
  numeric("Served", (row) => (row.risk === null ? "–" : percent(row.serve))),
  numeric("Age", (row) => age(row.age_s)),
  column("Trace", (row) => html`<${TraceLink} id=${row.trace_id} />`),
];

const Explanation = ({ of: { reason, near, key, partition } }) => html`<div role="status"><p><b>${reason}</b></p>
  ${near.length > 0 && html`<${Table} caption="Entries near it" columns=${NEAR} rows=${near} />`}
  <p class="note">Request <code>${key}</code>, partition <code>${partition}</code></p></div>`;

/** What a look-up came to, in a few words. */
export function resultOf(span) {
  if (span.hit) return "hit";
  if (span.explored) return "answered live, to check the cache";
  return span.refused_by ? `miss: the nearest question differs in ${span.refused_by}` : "miss";
}

/** What a look-up came to, with its figures. */
function outcomeOf(span) {
  const near = span.similarity === null ? "" : ` to a question with similarity ${span.similarity}`;
  const risk = span.risk === null ? "" : `; it may be wrong with a chance of up to ${percent(span.risk)}`;
  const odds = span.max_error === null ? risk : `${risk}, with the bound ${percent(span.max_error)} on wrong answers`;
  const saved = `from ${age(span.age_s)} before, which saved ${usd(span.saved_usd)}`;
  const result = `${resultOf(span)[0].toUpperCase()}${resultOf(span).slice(1)}`;
  if (span.hit) return `${result} (${span.mode}): an answer${near} ${saved}${odds}`;
  if (span.explored) return `${result}: an answer${near} could have been served${odds}`;
  if (span.refused_by) return result;
  return span.similarity === null ? `${result}: no entry was near` : `${result}: there was an answer${near}${odds}`;
}

const Lookup = ({ span }) => html`<div role="status"><p><b>${outcomeOf(span)}.</b></p><p class="note">
  ${span.entry_trace_id && html`The entry was stored by <${TraceLink} id=${span.entry_trace_id} />. `}
  ${span.compared.length > 0 && `Compared without a difference: ${span.compared.join(", ")}. `}
  ${span.namespace && `Namespace ${span.namespace}. `}${span.key && html`Request <code>${span.key}</code>`}</p></div>`;

function TraceLookups({ id, owner }) {
  const trace = useRead("traces.get", { trace_id: id, ...owner });
  return html`<${Loaded} of=${trace}>${(data) => {
    const spans = data.spans.filter((span) => span.type === "cache");
    if (!spans.length) return html`<${Empty}>The call <${TraceLink} id=${id} /> used no cache.<//>`;
    return spans.map((span) => html`<${Lookup} key=${span.id} span=${span} />`);
  }}<//>`;
}

export function Cache({ params }) {
  const owner = useOwner();
  const range = RANGES[params.range] ? params.range : "7d";
  const times = timesOf(RANGES[range][1], RANGES[range][2]);
  const dates = { start_date: dayOf(times[0]), end_date: dayOf(times.at(-1)) };
  const report = useRead("traces.cache_report", { ...dates, ...owner }, { every: 60 });
  const stats = useRead("page.cache_stats", { account: owner.account }, { every: 60 });
  const risk = useRead("page.cache_risk", owner);
  const [explanation, setExplanation] = useState(null);
  const { writes } = useContext(Here).session;
  const explain = async ({ request: text = "" }) => {
    const request = text.trim().startsWith("{") ? JSON.parse(text) : text;
    setExplanation(await change("page.explain_cache", { request, ...owner }));
  };
  return html`<${View} title="Cache" actions=${html`<${Ranges} view="cache" params=${params} chosen=${range} />`}>
    <${Loaded} of=${report}>${(data) => html`<${Savings} report=${data} stats=${stats.data} /><div class="columns">
      <${Section} title="Age of entries at a hit">
        ${range === "24h" && html`<p class="note">Yesterday and today (UTC)</p>`}
        ${data.hits ? html`<${Table} caption="Hits" columns=${agesOf(data.hits)} rows=${data.ttl_distribution} />`
          : html`<${Empty}>No hits in this time. A request uses the cache with <code>cache=True</code>, over HTTP
            ${" "}<code>"cache": {}</code>.<//>`}<//>
      <${Section} title="Bound on wrong answers">
        <${Loaded} of=${risk}>${(figures) => html`<${Risk} risk=${figures} />`}<//><//></div>`}<//>
    <${Section} title="Why a hit, or a miss"><div class="columns">
      ${writes ? html`<${Form} action="Explain" onSubmit=${explain}><${Area} label="Question" name="request" rows="3"
        required hint="Or a whole request as JSON. Nothing is called and nothing changes." /><//>`
        : html`<p class="note">Explaining a question shows questions of others, so it takes a key with
          console:write.</p>`}
      <${Form} action="Explain the call" onSubmit=${({ trace }) => setParams({ trace })}>
        <${Field} label="Trace id" name="trace" defaultValue=${params.trace} placeholder="tr_…" required /><//></div>
      ${explanation && html`<${Explanation} of=${explanation} />`}
      ${params.trace && html`<${TraceLookups} id=${params.trace} owner=${owner} />`}
    <//><//>`;
}
