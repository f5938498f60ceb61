// One trace: what it cost, its spans over time, why its model was chosen, and its texts.

import { change } from "../api.js";
import { Ask, Badge, Copy, Empty, Field, Figure, Form, Here, Loaded, Pairs, Section, Table, Time } from "../lib.js";
import { View, count, html, ms, percent, setParams, to, usd, useContext, useEffect, useRead } from "../lib.js";
import { useRef, useState } from "../lib.js";
import { resultOf } from "./cache.js";
import { STATUS } from "./traces.js";

// --- Facts: fields of a record, with the unit that their names say

const inWords = (name) => name.replace(/_(ms|usd|s)$/, "").replaceAll("_", " ");
const traceLink = (id) => html`<a href=${to(`traces/${id}`)}>${id}</a>`;
const tokensOf = ({ input, output }) => `${count(input)} in, ${count(output)} out`;
const SHARES = ["similarity", "risk", "max_error"];
const FACTS = ["account", "environment", "key_id", "policy_id", "cost_range_usd", "traceparent", "compromised"];
const SHOWN_BESIDE = ["id", "parent_id", "type", "name", "candidates", "rejected", "shadow"];

function valueOf(name, value) {
  if (name.endsWith("trace_id")) return traceLink(value);
  if (name === "tokens") return `${tokensOf(value)}, ${count(value.cached)} cached`;
  if (name === "cost_range_usd") return value.map(usd).join(" to ");
  if (name.endsWith("_usd")) return usd(value);
  if (/_m?s$/.test(name)) return ms(name.endsWith("_ms") ? value : value * 1000);
  if (SHARES.includes(name)) return percent(value);
  return value === true ? "yes" : textOf(value);
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The fields of a record that say something. */
const Facts = ({ of }) => html`<${Pairs} rows=${Object.entries(of)
  .filter(([name, value]) => value != null && value !== false && value.length !== 0 && !SHOWN_BESIDE.includes(name))
  .map(([name, value]) => [inWords(name), valueOf(name, value)])} />`;

/** A name in parts, such as `vendor/model` or `policy@version`, which breaks between them. */
export const nameInParts = (name) => name.split(/(?<=[/@])/).map((part) => html`${part}<wbr />`);

/** Text as it is. */
export const Text = (props) => html`<pre tabindex="0" role="region" aria-label=${props.label}>${props.children}</pre>`;

// --- The spans: a tree, and a bar for the time of each

const MOST_LEVELS = 50; // more is no run of an agent, and overflows the stack
const MARKS = ["hedge", "probe", "repair"];

/** Title and note by type of span. */
const TITLES = {
  decision: () => ["Decision"],
  cache: (span) => ["Cache look-up", resultOf(span)],
  model: (span) => [span.model, [`attempt ${span.attempt}`, ...MARKS.filter((name) => span[name])].join(", ")],
  fallback: (span) => ["Fallback", `${span.from_model} → ${span.to_model}: ${inWords(span.fault || span.reason)}`],
  guardrail: (span) => [`Guardrail ${span.name}`,
    `${span.action} ${span.rule} in the ${span.stage}, ${count(span.count)}×`],
  step: (span) => [`Step ${span.number}: ${inWords(span.name)}`],
  sub_trace: (span) => [`Call ${span.model || ""}`, traceLink(span.trace_id)],
  tool: (span) => [`Tool ${span.tool}`, span.still_running && "still running"],
};

/** Spans in the order of the tree, each with its level; `closed` ones hide those below. */
function rowsOf(spans, closed) {
  const ids = new Set(spans.map(({ id }) => id));
  const below = Map.groupBy(spans, ({ parent_id: parent }) => (ids.has(parent) ? parent : null));
  const walk = (id, level) => (below.get(id) || []).flatMap((span) => {
    const row = { span, level, isParent: below.has(span.id) && level < MOST_LEVELS, isOpen: !closed.has(span.id) };
    return row.isParent && row.isOpen ? [row, ...walk(span.id, level + 1)] : [row];
  });
  return walk(null, 1);
}

function SpanRow({ row: { span, level, isParent, isOpen }, total, isFirst, isChosen, toggle, choose, press }) {
  const [title, note] = TITLES[span.type](span);
  const place = { left: `${(100 * span.start_ms) / total}%`, width: `${(100 * span.duration_ms) / total}%` };
  const fold = html`<button type="button" class="quiet fold" tabindex="-1" aria-hidden onClick=${toggle}>▸</button>`;
  return html`<div role="row" class="span" tabindex=${isFirst ? 0 : -1} data-id=${span.id} aria-level=${level}
    aria-expanded=${isParent ? isOpen : undefined} aria-selected=${isChosen} onKeyDown=${press} onClick=${choose}>
    <span role="gridcell" class="name" style=${{ paddingLeft: `${level * 20}px` }}>${isParent && fold}
      <b>${title}</b> <span class="note">${note}</span></span>
    <span role="gridcell"><${Badge} kind=${{ ok: "good", error: "bad" }[span.status]}>
      ${span.error || span.status}<//></span>
    <span role="gridcell" class="number">${ms(span.duration_ms)}</span>
    <span role="gridcell" class="number">${span.cost_usd === undefined ? "" : usd(span.cost_usd)}</span>
    <span role="gridcell" class="number">
      ${span.tokens && `${count(span.tokens.input)} + ${count(span.tokens.output)}`}</span>
    <span role="gridcell" class="time"><span class="hidden">from ${ms(span.start_ms)}</span>
      <span class="part ${span.status}" style=${place}></span></span></div>
  ${isChosen && html`<div role="row" aria-level=${level}>
    <div role="gridcell" aria-colspan="6"><${Facts} of=${span} /></div></div>`}`;
}

function Spans({ trace }) {
  const chosen = Number(useContext(Here).route.params.span);
  const [closed, setClosed] = useState(() => new Set(
    trace.spans.filter(({ type, id }) => type === "sub_trace" && !(chosen > id)).map(({ id }) => id)));
  const grid = useRef();
  if (!trace.spans.length) return html`<${Empty}>This trace has no spans.<//>`;
  const rows = rowsOf(trace.spans, closed);
  const total = Math.max(trace.duration_ms, ...trace.spans.map((span) => span.start_ms + span.duration_ms)) || 1;
  const toggle = (id) => setClosed((old) => new Set(old).symmetricDifference(new Set([id])));
  const choose = (id) => setParams({ span: id === chosen ? "" : id }, { replace: true });
  const press = (event, { span, isParent, isOpen }, index) => {
    if (event.target !== event.currentTarget) return;
    const next = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (next !== undefined) grid.current.querySelectorAll("[data-id]")[next]?.focus();
    else if (isParent && event.key === (isOpen ? "ArrowLeft" : "ArrowRight")) toggle(span.id);
    else if (event.key === "ArrowLeft") grid.current.querySelector(`[data-id="${span.parent_id}"]`)?.focus();
    else if (event.key === "Enter" || event.key === " ") choose(span.id);
    else return;
    event.preventDefault();
  };
  return html`<div class="scroll"><div role="treegrid" class="spans" aria-label="Spans" ref=${grid}>
    <div role="row" class="span head note">${["Span", "Status", "Duration", "Cost", "Tokens"].map((name, index) =>
      html`<span role="columnheader" class=${index > 1 && "number"}>${name}</span>`)}
      <span role="columnheader" class="axis">${[0, 0.25, 0.5, 0.75, 1].map((part) =>
        html`<span>${ms(total * part)}</span>`)}</span></div>
    ${rows.map((row, index) => html`<${SpanRow} key=${row.span.id} row=${row} total=${total} isFirst=${index === 0}
      isChosen=${row.span.id === chosen} toggle=${() => toggle(row.span.id)}
      press=${(event) => press(event, row, index)}
      choose=${({ target }) => target.closest("a, button") || choose(row.span.id)} />`)}</div></div>`;
}

// --- Why this model

const CANDIDATES = [
  ["Model", ({ model, late }) => html`${model} ${late && html`<${Badge} kind="warn">late<//>`}`],
  ["Score", ({ score }) => score.toFixed(3)],
  ["Quality", ({ quality }) => quality.toFixed(2)],
  ["Expected cost", (candidate) => usd(candidate.cost_usd)],
  ["Expected latency", (candidate) => ms(candidate.latency_s * 1000)],
  ["Stability", ({ stability }) => percent(stability)],
  ["Terms: quality, cost, latency, stability", ({ terms }) => terms.map((term) => term.toFixed(2)).join(", ")],
].map(([name, of], index) => ({ name, of, kind: index > 0 && "number" }));
const namesOf = (candidates, most) => candidates.slice(0, most).map(({ model }) => model).join(", ");
const countsOf = (counts) =>
  Object.entries(counts).sort().map(([reason, models]) => `${inWords(reason)} ${models}`).join(", ");

function Replay({ span, replay: { decision, is_same: isSame, refusal, explanation } }) {
  const byReason = [...Map.groupBy(decision?.rejected || [], ({ reason }) => reason)];
  const rows = decision && span && [
    ["Models, best first", namesOf(span.candidates), namesOf(decision.candidates, span.candidates.length)],
    ["Rejected", countsOf(span.rejected),
      countsOf(Object.fromEntries(byReason.map(([reason, { length }]) => [reason, length])))],
    !isSame && ["Digest", span.digest, decision.digest],
  ].filter(Boolean);
  const columns = ["", "Stored", "Replayed"].map((name, index) => ({ name, kind: "dense", of: (row) => row[index] }));
  const verdict = isSame ? "same decision" : "different decision";
  return html`<h3>Replay <${Badge} kind=${isSame ? "good" : "bad"}>${verdict}<//></h3>
    ${refusal && !isSame && html`<p>The replay refuses the request: ${refusal}</p>`}
    ${rows && html`<${Table} caption="The stored decision and its replay" rows=${rows} columns=${columns} />`}
    <details><summary>Explanation, and rejected models</summary><${Text} label="Explanation">${explanation}<//>
      <${Pairs} rows=${byReason.map(([reason, models]) => [inWords(reason), namesOf(models)])} /></details>`;
}

function WhyNot({ query, models }) {
  const { model } = useContext(Here).route.params;
  const answer = useRead("page.why_not", { ...query, model }, { skip: !model });
  return html`<h3>What would change it</h3>
    <${Form} action="Explain" kind="plain" key=${model}
      onSubmit=${async (values) => setParams({ model: values.model })}>
      <${Field} label="Why not this model?" name="model" value=${model} list="models-of-decision" autocomplete="off" />
      <datalist id="models-of-decision">${models.map((entry) => html`<option value=${entry.model} />`)}</datalist><//>
    ${model && html`<${Loaded} of=${answer}>${({ text }) =>
      html`<${Text} label="What would change it">${text}<//>`}<//>`}`;
}

/** The decision of a trace once more, if it has one. */
export const useReplay = (query, trace) =>
  useRead("page.explain", query, { skip: !query.trace_id || !trace?.decision_input });

/** Why a trace's model was chosen. */
export function Why({ trace, query, replay }) {
  const span = trace.spans.find(({ type, parent_id: parent }) => type === "decision" && parent === null);
  const { shadow, passed_by: passedBy } = span || {};
  const { decision } = replay.data || {};
  const absent = trace.children.length ? "Each model call of the run has its own decision: "
    : "No decision was stored that can be replayed.";
  return html`${decision && html`<p>${decision.reason}</p>`}
    ${passedBy && html`<p>${passedBy} would have been first, but its circuit was open.</p>`}
    ${shadow && html`<p>The shadow ${shadow.policy} would choose ${shadow.model || "no model"}:
      ${" "}${shadow.reason || usd(shadow.cost_usd)}</p>`}
    ${span && html`<${Table} caption="Candidates" rows=${span.candidates} columns=${CANDIDATES}
        empty="No model passed every constraint." />
      <p>Rejected by constraint: ${countsOf(span.rejected) || "none"}</p>`}
    ${trace.decision_input ? html`
      <${Loaded} of=${replay}>${(data) => html`<${Replay} span=${span} replay=${data} />`}<//>
      <${WhyNot} query=${query} models=${decision ? [...decision.candidates, ...decision.rejected] : []} />`
    : html`<${Empty}>${absent}${trace.children.map((id) => html`${traceLink(id)} `)}<//>`}`;
}

// --- The rest

function Feedback({ query }) {
  const feedback = useRead("traces.feedback_of", query);
  const save = async (values) => {
    await change("traces.feedback", { ...query, ...values });
    feedback.reload();
  };
  const give = html`<${Ask} label="Give feedback" action="Save" act=${save}>
    <${Field} label="Score" name="score" type="number" min="0" max="1" step="any" hint="0: useless, 1: perfect" />
    <${Field} label="Comment" name="comment" /><//>`;
  return html`<${Section} title="Feedback" actions=${give}>
    <${Loaded} of=${feedback}>${(data) => (data
      ? html`<p><b>${data.score}</b> of 1, <${Time} at=${data.at} /></p><p>${data.comment}</p>`
      : html`<${Empty}>None yet.<//>`)}<//><//>`;
}

function Content({ content }) {
  if (!content) return html`<${Empty}>Texts are not stored unless you set <code>Settings(capture=Capture())</code><//>`;
  const { messages, output, tool_calls: calls } = content;
  const answer = output || calls ? [{ role: "answer", content: output, tool_calls: calls }] : [];
  return [...(messages || []), ...answer].map(({ role, content: text, tool_calls: used }) => html`<h3>${role}</h3>
    <${Text} label=${role}>
      ${[text, used].flat().filter(Boolean).map((part) => part.text ?? textOf(part)).join("\n")}<//>`);
}

export function Trace({ id }) {
  const { route: { params }, account, accounts, environment } = useContext(Here);
  const query = { trace_id: id, account, environment: params.environment };
  const stored = useRead("traces.get", query);
  const own = stored.data?.environment ?? environment; // a link that names none finds the trace in both
  useEffect(() => { // a link to share names the account, since the one that is shown first may change
    if (params.account !== account && accounts.length > 1) setParams({ account }, { replace: true });
    if (own !== environment) setParams({ environment: own }, { replace: true });
  }, [id, own]);
  const replay = useReplay(query, stored.data);
  const { refusal, is_same: isSame } = replay.data ?? {};
  return html`<${View} title="Trace ${id}"><${Loaded} of=${stored}>${(trace) => html`
    ${trace.error && html`<p class="failure">${trace.error}${isSame && refusal && `: ${refusal}`}</p>`}
    <dl class="figures">
      <${Figure} name="Status" value=${inWords(trace.status)} kind=${STATUS[trace.status]}
        note=${html`<${Time} at=${trace.created_at} />`} />
      <${Figure} name="Model" value=${nameInParts(trace.selected_model || "none")}
        note=${trace.fallback_used ? "a fallback" : trace.cache_hit && "from the cache"} />
      <${Figure} name="Latency" value=${ms(trace.duration_ms)} />
      <${Figure} name="Cost" value=${usd(trace.cost_usd)} note="charged ${usd(trace.charged_usd)}" />
      <${Figure} name="Tokens" value=${tokensOf(trace.tokens)} note="${count(trace.tokens.cached)} cached" />
      <${Figure} name="Policy" value=${nameInParts(trace.policy_version || "none")}
        note=${[trace.goal, trace.strategy].filter(Boolean).join(", ")} /></dl>
    <${Facts} of=${Object.fromEntries(FACTS.map((name) => [name, trace[name]]))} />
    ${Object.keys(trace.metadata).length > 0 && html`<${Section} title="Metadata">
      <${Pairs} rows=${Object.entries(trace.metadata).map(([name, value]) => [name, textOf(value)])} /><//>`}
    <${Section} title="Spans"><${Spans} trace=${trace} /><//>
    <${Section} title="Why this model"><${Why} trace=${trace} query=${query} replay=${replay} /><//>
    <${Section} title="Content"><${Content} content=${trace.content} /><//>
    <${Feedback} query=${query} />
    <details><summary>JSON</summary><${Copy} text=${JSON.stringify(trace)} />
      <${Text} label="JSON">${JSON.stringify(trace, null, 2)}<//></details>`}<//><//>`;
}
