// The response cache: what it saves, what it holds, how its bound on wrong answers is kept, and why a request is a hit.

import { read } from "../api.js";
import { RANGES, Ranges, dayOf, timesOf } from "../chart.js";
import { Area, Empty, Field, Figure, Form, Fragment, Loaded, Meter, Section, Table, Time, View } from "../lib.js";
import { bytes, count, html, ms, percent, setParams, to, usd, useOwner, useRead, useState } from "../lib.js";

const age = (seconds) => (seconds == null ? "–" : seconds < 3600 ? ms(seconds * 1000) : `${count(Math.round(seconds / 360) / 10)} h`);
const TraceLink = (id) => html`<a href=${to(`traces/${id}`)}>${id}</a>`;

function Use({ report, stats }) {
  return html`<dl class="figures">
    <${Figure} name="Hit rate" value=${percent(report.hit_rate)} note=${`${count(report.hits)} hits, ${count(report.misses)} misses`} />
    <${Figure} name="Saved" value=${usd(report.saved_usd)} note="what the answers cost at first" />
    <${Figure} name="Entries" value=${count(stats.data?.entries)} note=${stats.data && `${bytes(stats.data.size_bytes)} in ${count(stats.data.partitions)} partitions`} />
    <${Figure} name="Oldest entry" value=${html`<${Time} at=${stats.data?.oldest_at} />`} />
    <${Figure} name="Next hits would save" value=${usd(stats.data?.saves_usd)} note="one on each entry" />
  </dl>`;
}

const AGES = (hits) => [
  { name: "Age of the entry", of: (row) => (row.up_to_s === null ? "Older" : `Up to ${age(row.up_to_s)}`) },
  { name: "Hits", of: (row) => html`<${Meter} name="Share of hits" used=${row.hits} limit=${hits} format=${count} />` },
];

const Bound = ({ risk }) => (risk.lookups === 0
  ? html`<${Empty}>The newest ${count(risk.traces)} traces have no look-up.<//>`
  : html`<dl class="figures">
    <${Figure} name="Wrong answers, at most" value=${percent(risk.wrong_share)} note="estimate: share of all look-ups" />
    <${Figure} name="Bound (max_error)" value=${risk.max_errors.map(percent).join(", ") || "–"} note=${risk.max_errors.length ? "of the requests" : "no similar question was near"} />
    <${Figure} name="Hits" value=${count(risk.hits)} note=${`of ${count(risk.lookups)} look-ups in the newest ${count(risk.traces)} traces`} />
    <${Figure} name="Answered live to check" value=${count(risk.explored)} note=${`${percent(risk.explored / risk.lookups)} of look-ups`} />
  </dl>`);

const NEAR = [
  { name: "Question", of: (row) => row.question },
  { name: "Similarity", kind: "number", of: (row) => row.similarity },
  { name: "Differs in", of: (row) => row.refused_by || "–" },
  { name: "Equal in", of: (row) => row.compared.join(", ") || "–" },
  { name: "Wrong, at most", kind: "number", of: (row) => percent(row.risk) },
  { name: "Served", kind: "number", of: (row) => (row.risk === null ? "–" : percent(row.serve)) },
  { name: "Age", kind: "number", of: (row) => age(row.age_s) },
  { name: "Trace", of: (row) => TraceLink(row.trace_id) },
];

const Explanation = ({ explanation }) => html`<div role="status"><p><b>${explanation.reason}</b></p>
  ${explanation.near.length > 0 && html`<${Table} caption="Entries near the question" columns=${NEAR} rows=${explanation.near} />`}
  <p class="note">Request <code>${explanation.key}</code>, partition <code>${explanation.partition}</code></p></div>`;

/** What a look-up came to, in words. */
function outcomeOf(span) {
  const near = span.similarity === null ? "" : ` to a question with similarity ${span.similarity}`;
  const risk = span.risk === null ? "" : `; it may be wrong with a chance of up to ${percent(span.risk)}`;
  const bound = span.max_error === null ? "" : `, with the bound ${percent(span.max_error)} on wrong answers`;
  if (span.hit) return `A hit (${span.mode}): an answer${near} from ${age(span.age_s)} before, which saved ${usd(span.saved_usd)}${risk}${bound}`;
  if (span.explored) return `No hit, though an answer${near} was good enough: the call was answered live, to check how often the cache is right${risk}${bound}`;
  if (span.refused_by) return `A miss: the nearest question differs in ${span.refused_by}`;
  return span.similarity === null ? "A miss: no entry was near" : `A miss: there was an answer${near}${risk}${bound}`;
}

function TraceLookups({ id, owner }) {
  const trace = useRead("trace", { trace_id: id, ...owner });
  return html`<${Loaded} of=${trace}>${(data) => {
    const spans = data.spans.filter((span) => span.type === "cache");
    if (!spans.length) return html`<${Empty}>The call ${TraceLink(id)} used no cache.<//>`;
    return spans.map((span) => html`<div key=${span.id} role="status"><p><b>${outcomeOf(span)}.</b></p>
      <p class="note">${span.entry_trace_id && html`The answer is of ${TraceLink(span.entry_trace_id)}. `}
        ${span.compared.length > 0 && `Equal in ${span.compared.join(", ")}. `}${span.namespace && `Namespace ${span.namespace}. `}
        ${span.key && html`Request <code>${span.key}</code>`}</p></div>`);
  }}<//>`;
}

export function Cache({ params }) {
  const owner = useOwner();
  const range = RANGES[params.range] ? params.range : "7d";
  const times = timesOf(RANGES[range][1], RANGES[range][2]);
  const report = useRead("cache", { start_date: dayOf(times[0]), end_date: dayOf(times.at(-1)), ...owner }, { every: 60 });
  const stats = useRead("cache-stats", owner, { every: 60 });
  const risk = useRead("cache-risk", owner);
  const [explanation, setExplanation] = useState(null);
  const explain = async ({ request = "" }) => setExplanation(await read("cache-explain",
    { request: request.trim().startsWith("{") ? JSON.parse(request) : request, ...owner }));
  return html`<${View} title="Cache" actions=${html`<${Ranges} view="cache" params=${params} chosen=${range} />`}>
    <${Loaded} of=${report}>${(data) => html`<${Fragment}><${Use} report=${data} stats=${stats} />
      <div class="columns">
      <${Section} title="Age of entries at a hit">
        ${range === "24h" && html`<p class="note">Yesterday and today (UTC)</p>`}
        ${data.hits ? html`<${Table} caption="Hits by age of the entry" columns=${AGES(data.hits)} rows=${data.ttl_distribution} />`
          : html`<${Empty}>No hits in this time. A request uses the cache with <code>cache=True</code>, over HTTP <code>"cache": {}</code>.<//>`}<//>
      <${Section} title="Bound on wrong answers"><${Loaded} of=${risk}>${(figures) => html`<${Bound} risk=${figures} />`}<//><//>
      </div><//>`}<//>
    <${Section} title="Why a hit, or a miss">
      <div class="columns">
        <${Form} action="Explain" onSubmit=${explain}><${Area} label="Question" name="request" rows="3" required
          hint="Or a whole request as JSON. Nothing is called and nothing changes." /><//>
        <${Form} action="Explain the call" onSubmit=${({ trace }) => setParams({ trace })}>
          <${Field} label="Trace id" name="trace" value=${params.trace || ""} placeholder="tr_…" required /><//>
      </div>
      ${explanation && html`<${Explanation} explanation=${explanation} />`}
      ${params.trace && html`<${TraceLookups} id=${params.trace} owner=${owner} />`}
    <//><//>`;
}
