// What a draft would do to stored requests, and how the versions that served compare.

import { Figure, Field, Form, Here, Loaded, Section, Select, Table, Time, count, html, ms } from "../lib.js";
import { percent, setParams, to, useContext, useOwner, useRead, usd } from "../lib.js";
import { Button } from "./draft.js";
import { Text } from "./trace.js";

const SPANS = [["1d", "The last day"], ["7d", "The last 7 days"], ["30d", "The last 30 days"]];
const signed = (share) => (share > 0 ? `+${percent(share)}` : percent(share));

/** A figure with its 95 % interval. */
function interval(figure, format) {
  if (figure?.value == null) return format(null);
  const [low, high] = figure.interval ?? [figure.low, figure.high];
  return low == null ? format(figure.value) : `${format(figure.value)} (${format(low)} to ${format(high)})`;
}

export function Simulation({ state: { record, version }, versions, params }) {
  const { accounts } = useContext(Here);
  const args = { draft: params.draft || record.name, since: params.since, filter: params.filter, account: params.of };
  const report = useRead("console.simulate", args, { skip: !params.since });
  const labels = versions.filter(({ policy }) => policy).map(({ label }) => label);
  const own = record.draft || version ? [[record.name, record.draft ? "The draft" : `In force, ${version.label}`]] : [];
  const run = (values) => {
    const before = location.hash;
    setParams({ filter: "", of: "", ...values });
    if (location.hash === before) report.reload();
  };
  return html`<${Section} title="Simulate">
    <p class="note">Decides stored production requests again: those that named the policy, or if there are none, those
      without a policy. A filter narrows them. No model is called, and nothing changes.</p>
    <${Form} key=${JSON.stringify(args)} action="Simulate" onSubmit=${run}><div class="filters">
      <${Select} label="Rules" name="draft" value=${args.draft} options=${[...own, ...labels]} />
      <${Select} label="Requests of" name="since" value=${params.since ?? "7d"} options=${SPANS} />
      <${Select} label="Accounts" name="of" value=${params.of ?? ""} options=${[["", "All accounts"], ...accounts]} />
      <${Field} label="Filter" name="filter" defaultValue=${params.filter} placeholder="metadata.team=search"
        autocomplete="off" />
    </div><//><//>
    ${params.since && (report.isLoading ? html`<div class="actions"><progress aria-label="Simulation"></progress>
      <span role="status">Simulating…</span><${Button} onClick=${() => setParams({ since: "" })}>Cancel<//></div>`
      : html`<${Loaded} of=${report}>${(data) => html`<${Report} report=${data} />`}<//>`)}`;
}

const TABLES = {
  reroutes: ["Rerouted requests", { from_model: "From", to_model: "To", requests: "Requests" }],
  refusals: ["Refusals", { constraint: "Constraint", new: "Newly refused", gone: "No longer refused" }],
  blocked: ["Limits that would block", { account: "Account", period: "Period", start: "Begins", limit_usd: "Limit",
    expected_usd: "Expected", requests: "Requests after it" }],
  costlier: ["Costlier accounts", { account: "Account", requests: "Requests", before_usd: "Before",
    after_usd: "After" }],
  drifts: ["Unexpected answer lengths", { model: "Model", ratio: "Actual to expected length", answers: "Answers" }],
};
const modelOf = (id) => id ?? html`<em>refused</em>`;

function valueOf(field, value) {
  if (field.endsWith("_model")) return modelOf(value);
  if (field.endsWith("_usd")) return usd(value);
  if (field === "ratio") return interval(value, (times) => times.toFixed(2));
  return typeof value === "number" ? count(value) : value;
}

/** A table of the report; its first column names the row. */
function Rows({ title, fields, rows }) {
  const columns = Object.entries(fields).map(([field, name]) => (
    { name, kind: typeof rows[0]?.[field] === "number" && "number", of: (row) => valueOf(field, row[field]) }));
  return rows.length > 0 && html`<h3>${title}</h3><${Table} caption=${title} rows=${rows} columns=${columns} />`;
}

function Report({ report }) {
  const expected = [["cost", "usd", usd], ["latency", "ms", ms]].map(([name, unit, format]) => [`Expected ${name}`,
    interval(report[`${name}_before_${unit}`], format), interval(report[`${name}_after_${unit}`], format),
    interval(report[`${name}_change`], signed)]);
  const columns = ["", "Before", "After", "Change"].map((name, place) => ({ name, of: (row) => row[place] }));
  const refused = report.refused_share;
  return html`<${Section} title=${`${report.policy}, ${report.version}`}>
    <p class="note"><${Time} at=${report.since} /> to <${Time} at=${report.until} />. Brackets hold 95 % intervals.</p>
    <dl class="figures">
      <${Figure} name="Requests" value=${count(report.requests)}
        note=${report.skipped > 0 && `${count(report.skipped)} more cannot be repeated`} />
      ${report.requests > 0 && html`
        <${Figure} name="Rerouted" value=${count(report.rerouted)} note=${interval(report.rerouted_share, percent)} />
        <${Figure} name="Newly refused" value=${percent(refused?.value)}
          note=${refused && `${percent(refused.low)} to ${percent(refused.high)}`} />
        <${Figure} name="Actual cost" value=${usd(report.actual_cost_usd)} />`}
      ${report.unknown_spent > 0 && html`<${Figure} name="Unknown spending" value=${count(report.unknown_spent)} />`}
    </dl>
    ${report.problem ? html`<p class="warning">No figures: ${report.problem}</p>`
      : html`<${Table} caption="Expected figures" rows=${expected} columns=${columns} />
        <p class="note">The figures are without requests that would newly be refused.</p>
        ${report.latency_problem && html`<p class="warning">No latency: ${report.latency_problem}</p>`}`}
    ${report.expectations.map((model) => html`<p class="note">${model} has no outcome on such requests:
      its figures are an expectation.</p>`)}
    ${Object.entries(TABLES).map(([key, [title, fields]]) => html`<${Rows} title=${title} fields=${fields}
      rows=${report[key]} />`)}
    ${report.examples.length > 0 && html`<h3>Samples</h3>`}
    ${report.examples.map((sample) => html`<${Sample} key=${sample.trace_id} sample=${sample} />`)}<//>`;
}

const Sample = ({ sample: { trace_id: id, account, from_model, to_model, before, after } }) => html`<details>
  <summary>${modelOf(from_model)} → ${modelOf(to_model)}: ${id}</summary>
  <p><a href=${to(["traces", id], { account, environment: "production" })}>Its trace</a></p>
  <div class="columns"><div><h3>Before</h3><${Text} label="Explanation before">${before}<//></div>
    <div><h3>After</h3><${Text} label="Explanation after">${after}<//></div></div></details>`;

const FIGURES = {
  cost_usd: ["Cost of a request", usd], error_rate: ["Error rate", percent], latency_ms: ["Mean latency", ms],
  p50_ms: ["Latency p50", ms], p95_ms: ["Latency p95", ms], feedback: ["Feedback, 0 to 1", count],
};

export function Comparison({ state, params: { since = "7d" } }) {
  const { name } = state.record;
  const { environment } = useOwner();
  const comparison = useRead("console.compare", { name, since, environment });
  const span = html`<${Select} label="Requests of" value=${since} options=${SPANS}
    onChange=${(event) => setParams({ since: event.target.value })} />`;
  const figures = Object.entries(FIGURES);
  const sideOf = (side) => ({ name: side.version, of: ([key, [, format]]) => interval(side[key], format) });
  return html`<${Section} title=${`Versions by their ${environment} requests, with 95 % intervals`} actions=${span}>
    <${Loaded} of=${comparison}>${({ versions, share }) => html`
      <${Table} caption="Versions" rows=${versions} columns=${[
        { name: "Version", of: (row) => row.version },
        { name: "Requests", kind: "number", of: (row) => count(row.requests) },
        ...figures.map(([key, [title, format]]) => ({ name: title, of: (row) => interval(row[key], format) })),
      ]} empty="No stored request was served by a version of this policy in this time." />
      ${share && html`<h3>The share, by the requests that it assigned</h3>
        <${Table} caption="Share" rows=${figures} columns=${[
        { name: "", of: ([, [title]]) => title }, sideOf(share.base), sideOf(share.shared),
        { name: "Verdict", of: ([key]) => share.differences[key]?.verdict },
      ]} />`}`}<//><//>`;
}
