// What a draft would do to stored requests, and how the versions that served compare.

import { Empty, Figure, Field, Form, Here, Loaded, Section, Select, Table, Time, count, html, ms, percent } from "../lib.js";
import { setParams, to, useContext, useEffect, useOwner, useRead, useState, usd } from "../lib.js";
import { Text } from "./trace.js";

const SPANS = [["1d", "The last day"], ["7d", "The last 7 days"], ["30d", "The last 30 days"]];
const signed = (share) => (share > 0 ? `+${percent(share)}` : percent(share));
const modelOf = (id) => id ?? html`<em>refused</em>`;

/** A figure with its 95 % interval. */
const interval = (figure, format) => {
  if (figure?.value == null) return format(null);
  const [low, high] = figure.interval ?? [figure.low, figure.high];
  return low == null ? format(figure.value) : `${format(figure.value)} (${format(low)} to ${format(high)})`;
};

export function Simulation({ state: { record, version }, versions, params }) {
  const { accounts } = useContext(Here);
  const args = { draft: params.draft || record.name, since: params.since, filter: params.filter, account: params.of };
  const report = useRead("policy-simulate", args, { skip: !params.since });
  const labels = versions.filter(({ policy }) => policy).map(({ label }) => label);
  const own = record.draft ? "The draft" : `In force, ${version?.label}`;
  const run = ({ draft, since, filter, of }) => {
    const before = location.hash;
    setParams({ draft: draft === record.name ? "" : draft, since, filter, of });
    if (location.hash === before) report.reload();
  };
  if (!record.draft && !labels.length) return html`<${Empty}>There is nothing to simulate. Write a draft first.<//>`;
  return html`<${Section} title="Simulate">
    <p class="note">Decides the stored production requests of a time again. It calls no model and changes nothing.</p>
    <${Form} key=${JSON.stringify(args)} action="Simulate" onSubmit=${run}><div class="filters">
      <${Select} label="Rules" name="draft" value=${args.draft} options=${[...(record.draft || version ? [[record.name, own]] : []), ...labels]} />
      <${Select} label="Requests of" name="since" value=${params.since ?? "7d"} options=${SPANS} />
      <${Select} label="Accounts" name="of" value=${params.of ?? ""} options=${[["", "All accounts"], ...accounts]} />
      <${Field} label="Filter" name="filter" defaultValue=${params.filter} placeholder="metadata.team=search" autocomplete="off"
        hint="Empty: requests that named the policy" />
    </div><//><//>
    ${params.since && (report.isLoading ? html`<${Progress} cancel=${() => setParams({ since: "" })} />`
      : html`<${Loaded} of=${report}>${(data) => html`<${Report} report=${data} />`}<//>`)}`;
}

function Progress({ cancel }) {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setSeconds((past) => past + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<div class="actions"><progress aria-label="Simulation"></progress>
    <span role="status">Deciding the requests again</span><span>${seconds} s</span><button type="button" onClick=${cancel}>Cancel</button></div>`;
}

const figure = (name, key, format) => ({ name, kind: "number", of: (row) => format(row[key]) });

function Report({ report }) {
  const figures = [["cost", "usd", usd], ["latency", "ms", ms]].map(([name, unit, format]) => ({
    name: `Expected ${name}`,
    before: interval(report[`${name}_before_${unit}`], format),
    after: interval(report[`${name}_after_${unit}`], format),
    change: interval(report[`${name}_change`], signed),
  }));
  const tables = [
    ["Rerouted requests", report.reroutes, [{ name: "From", of: (row) => modelOf(row.from_model) },
      { name: "To", of: (row) => modelOf(row.to_model) }, figure("Requests", "requests", count)]],
    ["Refusals", report.refusals, [{ name: "Constraint", of: (row) => row.constraint }, figure("Newly refused", "new", count),
      figure("No longer refused", "gone", count)]],
    ["Limits that would block", report.blocked, [{ name: "Account", of: (row) => row.account },
      { name: "Period", of: (row) => `${row.period} of ${row.start}` }, figure("Limit", "limit_usd", usd),
      figure("Expected", "expected_usd", usd), figure("Requests after it", "requests", count)]],
    ["Accounts whose cost rises most", report.costlier, [{ name: "Account", of: (row) => row.account },
      figure("Requests", "requests", count), figure("Before", "before_usd", usd), figure("After", "after_usd", usd)]],
    ["Answers of another length than expected", report.drifts, [{ name: "Model", of: (row) => row.model },
      { name: "Times the expected length", kind: "number", of: (row) => interval(row.ratio, (value) => value?.toFixed(2)) },
      figure("Answers", "answers", count)]],
  ];
  return html`<${Section} title=${`${report.policy}, ${report.version}`}>
    <p class="note"><${Time} at=${report.since} /> to <${Time} at=${report.until} />. Brackets hold 95 % intervals.</p>
    <dl class="figures">
      <${Figure} name="Requests" value=${count(report.requests)} note=${report.skipped > 0 && `${count(report.skipped)} more cannot be repeated`} />
      <${Figure} name="Rerouted" value=${count(report.rerouted)} note=${interval(report.rerouted_share, percent)} />
      <${Figure} name="Newly refused" value=${percent(report.refused_share?.value)}
        note=${report.refused_share && `${percent(report.refused_share.low)} to ${percent(report.refused_share.high)}`} />
      <${Figure} name="Actual cost" value=${usd(report.actual_cost_usd)} />
      ${report.unknown_spent > 0 && html`<${Figure} name="Unknown share of limits" value=${count(report.unknown_spent)} note="requests" />`}
    </dl>
    ${report.problem ? html`<p class="warning">No figures: ${report.problem}</p>`
      : html`<${Table} caption="Expected figures" rows=${figures} columns=${[{ name: "", of: (row) => row.name },
        ...["before", "after", "change"].map((when) => ({ name: when[0].toUpperCase() + when.slice(1), of: (row) => row[when] }))]} />
        ${report.latency_problem && html`<p class="warning">No latency: ${report.latency_problem}</p>`}
        ${report.refusals.some((row) => row.new > 0) && html`<p class="note">The figures are without the requests that would newly be refused.</p>`}`}
    ${report.expectations.map((model) => html`<p class="note">${model} has no outcome on such requests: its figures are an expectation.</p>`)}
    ${tables.map(([title, rows, columns]) => rows.length > 0 && html`<h3>${title}</h3>
      <${Table} caption=${title} rows=${rows} columns=${columns} />`)}
    ${report.examples.length > 0 && html`<h3>Samples</h3>`}
    ${report.examples.map((sample) => html`<details key=${sample.trace_id}>
      <summary>${modelOf(sample.from_model)} → ${modelOf(sample.to_model)}: ${sample.trace_id}</summary>
      <p><a href=${to(["traces", sample.trace_id], { account: sample.account, environment: "production" })}>Its trace</a></p>
      <div class="columns">${["before", "after"].map((when) => html`<div><h3>${when === "before" ? "Before" : "After"}</h3>
        <${Text} label=${`Explanation ${when}`}>${sample[when]}<//></div>`)}</div></details>`)}
  <//>`;
}

const FIGURES = { cost_usd: ["Cost of a request", usd], error_rate: ["Error rate", percent], latency_ms: ["Mean latency", ms],
  p50_ms: ["Latency p50", ms], p95_ms: ["Latency p95", ms], feedback: ["Feedback", (score) => count(score)] };

export function Comparison({ name, since = "7d" }) {
  const { environment } = useOwner();
  const comparison = useRead("policy-compare", { name, since, environment });
  return html`<${Section} title=${`Versions by the ${environment} requests that they served`} actions=${html`<${Select} label="Requests of"
    value=${since} options=${SPANS} onChange=${(event) => setParams({ since: event.target.value })} />`}>
    <${Loaded} of=${comparison}>${({ versions, share }) => html`
      <p class="note">Brackets hold 95 % intervals.</p>
      <${Table} caption="Versions" rows=${versions} keyOf=${(row) => row.version} columns=${[
        { name: "Version", of: (row) => row.version }, figure("Requests", "requests", count),
        ...Object.entries(FIGURES).map(([key, [title, format]]) => ({ name: title, of: (row) => interval(row[key], format) })),
      ]} empty="No stored request was served by a version of this policy in this time." />
      ${share && html`<h3>The share, by the requests that it assigned</h3><${Table} caption="Share" rows=${Object.entries(share.differences)}
        keyOf=${([key]) => key} columns=${[
          { name: "", of: ([key]) => FIGURES[key]?.[0] ?? key },
          ...["base", "shared"].map((side) => ({ name: share[side].version,
            of: ([key]) => interval(share[side][key], FIGURES[key]?.[1] ?? String) })),
          { name: "Verdict", of: ([, difference]) => difference.verdict },
        ]} />`}`}<//><//>`;
}
