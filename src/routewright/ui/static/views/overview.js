// The front page: what was spent and how well it went, what is wrong, and how far the month is.

import { change } from "../api.js";
import { Chart, DAY, HOUR, RANGES, Ranges, dayOf, timesOf } from "../chart.js";
import { ALL, Badge, Confirm, Empty, Field, Figure, Form, Fragment, Here, Loaded, Meter, Opens, Section, Select, Table, Time, View } from "../lib.js";
import { bytes, count, html, ms, percent, setParams, to, usd, useContext, useMemo, useRead } from "../lib.js";

const SHOWN = 6; // groups that a chart names
const GROUPS = { model: "Model", account: "Account", policy_version: "Policy version", shadow: "Shadow of a policy", tenant: "Tenant", workflow: "Workflow" };
const LEVELS = { account: "Balance", day: "Day", week: "Week", month: "Month", tag: "Tag" };
const secondsOf = (text) => Date.parse(text) / 1000;
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** A row's group as text. */
const groupOf = (row, groupBy) => (row.rest ? "All others" : row.group ?? `(no ${(GROUPS[groupBy] || groupBy).toLowerCase()})`);

/** A function of a field of usage rows: its values by time, for the groups with most calls and all others together. */
function byGroup(rows, times, groupBy) {
  const calls = new Map();
  for (const row of rows) calls.set(groupOf(row, groupBy), (calls.get(groupOf(row, groupBy)) || 0) + row.requests);
  const names = [...calls.keys()].sort((one, other) => calls.get(other) - calls.get(one));
  const shown = names.slice(0, names.length > SHOWN ? SHOWN - 1 : SHOWN).filter((name) => name !== "All others");
  const series = names.length > shown.length ? [...shown, "All others"] : shown;
  return (field) => series.map((name, place) => {
    const values = times.map(() => 0);
    for (const row of rows) {
      const index = shown.indexOf(groupOf(row, groupBy));
      if (index === place || (index < 0 && place === shown.length)) values[times.indexOf(secondsOf(row.bucket_start))] += row[field];
    }
    return { name, values };
  });
}

function UsageChart({ title, field, format, times, step, grouped }) {
  const series = grouped(field);
  return html`<${Chart} title=${title} times=${times} step=${step} series=${series} format=${format} isStacked
    totals=${series.map((entry) => format(sum(entry.values)))} />`;
}

function LatencyChart({ days, times, model = "" }) {
  const models = [...new Set(days.map((row) => row.model || ""))];
  const rows = new Map(days.filter((row) => (row.model || "") === model).map((row) => [secondsOf(row.day), row]));
  const line = (name, field, style) => ({ name, line: style, values: times.map((time) => rows.get(time)?.[field] ?? null) });
  return html`<${Chart} title="Latency by day" times=${times} step=${DAY} format=${ms}
    series=${[line("p50", "p50_ms", "solid"), line("p95", "p95_ms", "dashed")]}>
    <${Select} label="Model" value=${model} options=${models.map((name) => [name, name || "All models"])}
      onChange=${(event) => setParams({ latency_of: event.target.value })} /><//>`;
}

const NoCalls = ({ environment }) => html`<${Empty}>No calls in this time
  ${environment === "production" && html`; <a href=${to("overview", { environment: "sandbox" })}>the sandbox</a> is counted by itself`}.
  To record one: <code>routewright route --sandbox --store traces.db "Hello"</code>, or start
  <code>routewright serve --store traces.db</code> and send it requests.<//>`;

function Figures({ rows, since, latency, fallback, cache }) {
  const total = (field) => sum(rows.map((row) => row[field]));
  const today = latency.data?.findLast((row) => row.model === null);
  const calls = total("requests");
  return html`<dl class="figures">
    <${Figure} name="Spend" value=${usd(total("cost_usd"))} note=${`${usd(total("charged_usd"))} charged to accounts`} />
    <${Figure} name="Calls" value=${count(calls)} />
    <${Figure} name="Errors" value=${count(total("errors"))} note=${calls ? percent(total("errors") / calls) : ""} />
    <${Figure} name="Rescued by a fallback" value=${count(fallback.data?.triggered)} note=${fallback.data && `${percent(fallback.data.rate)} of calls${since}`} />
    <${Figure} name="Latency p50" value=${ms(today?.p50_ms)} note=${today && `p95 ${ms(today.p95_ms)}, on ${today.day}`} />
    <${Figure} name="Cache hit rate" value=${percent(cache.data?.hit_rate)} note=${cache.data && `${usd(cache.data.saved_usd)} saved${since}`} />
  </dl>`;
}

const pairs = (counts) => Object.entries(counts).sort(([, one], [, other]) => other - one);
const Counts = ({ caption, name, counts, empty, show = (key) => html`<code>${key}</code>`, unit = "Calls" }) =>
  html`<${Table} caption=${caption} rows=${pairs(counts)} empty=${empty}
    columns=${[{ name, of: ([key]) => show(key) }, { name: unit, kind: "number", of: ([, value]) => count(value) }]} />`;
const ModelLink = (id) => html`<a href=${to(`models/${id}`)}>${id}</a>`;

const LATENCY = [
  { name: "Model", of: (row) => ModelLink(row.model) },
  { name: "Strategy", of: (row) => row.strategy },
  { name: "Calls", kind: "number", of: (row) => count(row.count) },
  { name: "p50", kind: "number", of: (row) => ms(row.p50_ms) },
  { name: "p95", kind: "number", of: (row) => ms(row.p95_ms) },
  { name: "p99", kind: "number", of: (row) => ms(row.p99_ms) },
];
const ATTEMPTS = [
  { name: "Model", of: (row) => ModelLink(row.model) },
  { name: "Attempts", kind: "number", of: (row) => count(row.attempts) },
  { name: "Succeeded", kind: "number", of: (row) => percent(row.success_rate) },
];

function Limits({ account }) {
  const limits = useRead("nearest-limits", { account }, { every: account === undefined ? 300 : 60 });
  const now = new Date();
  const days = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 0)).getUTCDate();
  const columns = [
    { name: "Account", of: (row) => html`<a href=${to("accounts", { account: row.account })}>${row.account}</a>` },
    { name: "Limit", of: (row) => LEVELS[row.purse.level] || row.purse.level },
    { name: "Spent", of: (row) => html`<${Meter} name=${`${row.account}, ${row.purse.name}`} used=${row.purse.spent_usd} limit=${row.purse.limit_usd} />` },
    { name: "Reserved", kind: "number", of: (row) => usd(row.purse.reserved_usd) },
  ];
  return html`<${Section} title="Budgets">
    <p class="note">Day ${now.getUTCDate()} of ${days} of this month (UTC)${account === undefined && "; the ten limits that are used most"}.</p>
    <${Loaded} of=${limits}>${(rows) => html`<${Table} caption="Limits" columns=${columns} rows=${rows}
      empty=${html`No limits are set; <a href=${to("accounts")}>accounts</a> can have them.`} />`}<//><//>`;
}

function Incidents() {
  const incidents = useRead("incidents", {}, { every: 60 });
  const resolve = async (id) => { await change("incident-resolve", { id }); incidents.reload(); };
  const open = (close) => html`<${Form} action="Open" cancel=${close}
    onSubmit=${async (values) => { await change("incident-open", values); incidents.reload(); close(); }}>
    <${Field} label="Title" name="title" required />
    <${Select} label="Severity" name="severity" options=${["minor", "major", "critical"]} />
    <${Field} label="Address of a status page" name="status_url" type="url" hint="Optional, https" /><//>`;
  const columns = [
    { name: "Incident", of: (row) => html`${row.title}${row.status_url && html` <a href=${/^https?:/.test(row.status_url) ? row.status_url : undefined} rel="noreferrer">status page</a>`}` },
    { name: "Severity", of: (row) => html`<${Badge} kind=${row.severity === "minor" ? "warn" : "bad"}>${row.severity}<//>` },
    { name: "Opened", of: (row) => html`<${Time} at=${row.started_at} />` },
    { name: "Resolved", of: (row) => (row.resolved_at ? html`<${Time} at=${row.resolved_at} />`
      : html`<${Badge} kind="bad">open<//> <${Confirm} label="Resolve" title=${`Resolve ${row.title}`} kind="primary"
        text="The incident stays in the list, with the time of its end." act=${() => resolve(row.id)} />`) },
  ];
  return html`<${Section} title="Incidents" actions=${html`<${Opens} label="Open an incident">${open}<//>`}>
    <${Loaded} of=${incidents}>${(data) => html`<${Table} caption="Incidents" columns=${columns} keyOf=${(row) => row.id}
      rows=${[...data].sort((one, other) => Boolean(one.resolved_at) - Boolean(other.resolved_at))} empty="There were no incidents." />`}<//><//>`;
}

const CIRCUITS = [
  { name: "Model", of: (row) => ModelLink(row.model) },
  { name: "Fault", of: (row) => row.fault || "opened by another process, or the key was refused" },
  { name: "Next try", kind: "number", of: (row) => `in ${ms(row.probe_in_s * 1000)}` },
];
const PARTS = [
  { name: "Part", of: (row) => row.part },
  { name: "State", of: (row) => html`<${Badge} kind=${row.failing ? "bad" : "good"}>${row.failing ? "failing" : "works again"}<//>` },
  { name: "Since", of: (row) => html`<${Time} at=${row.at} />` },
  { name: "Last failure", of: (row) => row.text },
];

const Server = ({ status }) => html`<${Section} title="This process">
  <dl class="figures">
    <${Figure} name="Rate limits are kept in" value=${status.limits.place} note=${status.limits.share && `${status.limits.share} of them, since the coordination is away`} />
    <${Figure} name="Storage" value=${status.storage.kind} kind=${status.storage.failing ? "bad" : ""}
      note=${status.storage.failing ? "the last write failed" : status.storage.database_bytes && bytes(status.storage.database_bytes)} />
    <${Figure} name="Disk free" value=${bytes(status.storage.disk_free_bytes)} />
    <${Figure} name="Traces to write" value=${count(status.traces.waiting)} note=${`${count(status.traces.lost)} lost, ${count(status.traces.refused)} refused`} />
    <${Figure} name="Keys refused by vendors" value=${count(sum(status.providers.map((provider) => provider.keys_refused)))}
      note=${status.providers.filter((provider) => provider.keys_refused).map((provider) => provider.name).join(", ")} />
  </dl>
  <div class="columns">
    <div><h3>Circuits that are open</h3><${Table} caption="Open circuits" columns=${CIRCUITS} rows=${status.circuits} empty="None: all models are called." /></div>
    <div><h3>Refusals since the start</h3><${Counts} caption="Refusals by code" name="Code" counts=${status.refusals} empty="None." /></div>
    <div><h3>Webhook deliveries since the start</h3><${Counts} caption="Deliveries by state" name="State" unit="Attempts" counts=${status.deliveries} empty="None." /></div>
  </div>
  <h3>Parts that failed</h3><${Table} caption="Parts that failed" columns=${PARTS} rows=${status.faults} empty="None." /><//>`;

const Problems = ({ problems }) => problems.length > 0 && html`<div class="failure" role="alert"><b>Problems</b>
  <ul>${problems.map((problem) => html`<li key=${problem}>${problem}</li>`)}</ul></div>`;

export function Overview({ params }) {
  const { scope } = useContext(Here);
  const environment = params.environment || "production";
  const range = RANGES[params.range] ? params.range : "7d";
  const [, step, steps] = RANGES[range];
  const all = scope === ALL;
  const hour = Math.floor(Date.now() / 1000 / HOUR);
  const times = useMemo(() => timesOf(step, steps), [range, hour]);
  const days = useMemo(() => timesOf(DAY, Math.max(7, range === "24h" ? 0 : steps)), [range, hour]); // of latency
  const every = all ? 300 : 60; // reports on all accounts read each of them
  const owner = { ...(all ? { all_accounts: true } : { account: scope }), environment };
  const dates = { start_date: dayOf(times[0]), end_date: dayOf(times.at(-1)) };
  const groups = useRead("usage-groups", all ? { all_accounts: true } : { account: scope });
  const groupBy = !all && params.group_by === "account" ? "model" : params.group_by || "model";
  const account = groupBy === "account" ? { environment } : owner;
  const usage = useRead("usage", { ...dates, ...account, group_by: groupBy, bucket: step === HOUR ? "hour" : "day" }, { every: 60 });
  const latency = useRead("latency", { ...dates, ...owner }, { every });
  const byDay = useRead("latency-by-day", { ...owner, start_date: dayOf(days[0]), end_date: dates.end_date }, { every });
  const fallback = useRead("fallback", { ...dates, ...owner }, { every });
  const cache = useRead("cache", { ...dates, ...owner }, { every });
  const status = useRead("status", {}, { every: 10 });
  const options = (groups.data || [groupBy]).map((name) => [name, GROUPS[name] || name.replace("metadata.", "Metadata: ")]);
  const since = range === "24h" ? "yesterday and today (UTC)" : "";
  const choices = html`<${Ranges} view="overview" params=${params} chosen=${range} />
    <${Select} label="Group by" value=${groupBy} options=${options} onChange=${(event) => setParams({ group_by: event.target.value })} />`;
  return html`<${View} title="Overview" actions=${choices}>
    ${status.data && html`<${Problems} problems=${status.data.problems} />`}
    <${Loaded} of=${usage}>${(report) => {
      const rows = report.data.filter((row) => times.includes(secondsOf(row.bucket_start)));
      if (!rows.length) return html`<${NoCalls} environment=${environment} />`;
      const chart = { times, step, grouped: byGroup(rows, times, groupBy) };
      return html`<${Fragment}><${Figures} rows=${rows} since=${since && `, ${since}`} latency=${byDay} fallback=${fallback} cache=${cache} />
        <div class="charts">
          <${UsageChart} title="Spend, paid to providers" field="cost_usd" format=${usd} ...${chart} />
          <${UsageChart} title="Calls" field="requests" format=${count} ...${chart} />
          <${UsageChart} title="Errors" field="errors" format=${count} ...${chart} />
          <${Loaded} of=${byDay}>${(data) => html`<${LatencyChart} days=${data} times=${days} model=${params.latency_of} />`}<//>
        </div><//>`;
    }}<//>
    <div class="columns">
      <${Section} title="Latency by model" actions=${html`<span class="note">${since}</span>`}><${Loaded} of=${latency}>${(report) =>
        html`<${Table} caption="Latency by model" columns=${LATENCY} rows=${report.data} empty="No completed calls." />`}<//><//>
      <${Section} title="Rescues" actions=${html`<span class="note">${since}</span>`}><${Loaded} of=${fallback}>${(report) => html`<${Fragment}>
        <${Table} caption="Attempts by model" columns=${ATTEMPTS} rows=${report.candidates} empty="No model was called." />
        <h3>Why a fallback served</h3><${Counts} caption="Fallbacks by reason" name="Reason" counts=${report.reasons} empty="No fallback served." />
        <h3>Models that calls went past</h3><${Counts} caption="Models that calls went past" name="Model" counts=${report.passed_by} show=${ModelLink} empty="None." /><//>`}<//><//>
    </div>
    <${Limits} account=${all ? undefined : scope} />
    <${Incidents} />
    <${Loaded} of=${status}>${(data) => html`<${Server} status=${data} />`}<//>
  <//>`;
}
