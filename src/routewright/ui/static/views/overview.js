// The front page: what was spent and how well it went, what is wrong, and how far the month is.

import { change } from "../api.js";
import { Chart, DAY, HOUR, RANGES, Ranges, dayOf, timesOf } from "../chart.js";
import { ALL, Ask, Badge, Choice, Confirm, Empty, Field, Figure, Here, Loaded, Meter } from "../lib.js";
import { Section, Select, Table, Time, View, bytes, column, count, html, ms, numeric, percent } from "../lib.js";
import { to, usd, useContext, useMemo, useRead } from "../lib.js";

const SHOWN = 6; // groups that a chart names
const GROUPS = { __proto__: null,
  model: "Model", account: "Account", policy_version: "Policy version", shadow: "Shadow of a policy" };
const LEVELS = { account: "Balance", day: "Day", week: "Week", month: "Month" };
const REST = "All others";
const secondsOf = (text) => Date.parse(text) / 1000;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const nameOf = (groupBy) => GROUPS[groupBy] || groupBy.replace("metadata.", "Metadata: ");
const ModelLink = (id) => html`<a href=${to(`models/${id}`)}>${id}</a>`;

/** A function of a field of usage rows: its values by time, for the groups with most calls and all others together. */
function byGroup(rows, times, groupBy) {
  const groupOf = (row) => (row.rest ? REST : row.group ?? `(no ${nameOf(groupBy).toLowerCase()})`);
  const calls = new Map();
  for (const row of rows) calls.set(groupOf(row), (calls.get(groupOf(row)) || 0) + row.requests);
  const names = [...calls.keys()].sort((one, other) => calls.get(other) - calls.get(one));
  const shown = names.slice(0, names.length > SHOWN ? SHOWN - 1 : SHOWN).filter((name) => name !== REST);
  const series = names.length > shown.length ? [...shown, REST] : shown;
  return (field) => series.map((name) => {
    const values = times.map(() => 0);
    for (const row of rows) {
      const group = shown.includes(groupOf(row)) ? groupOf(row) : REST;
      if (group === name) values[times.indexOf(secondsOf(row.bucket_start))] += row[field];
    }
    return { name, values };
  });
}

function UsageChart({ field, grouped, ...chart }) {
  const series = grouped(field);
  const totals = series.map((entry) => chart.format(sum(entry.values)));
  return html`<${Chart} ...${chart} series=${series} totals=${totals} isStacked />`;
}

function LatencyChart({ days, times, model = "" }) {
  const models = [...new Set(days.map((row) => row.model || ""))];
  const rows = new Map(days.filter((row) => (row.model || "") === model).map((row) => [secondsOf(row.day), row]));
  const valuesOf = (field) => times.map((time) => rows.get(time)?.[field] ?? null);
  const p95 = { name: "p95", values: valuesOf("p95_ms"), line: "dashed" };
  return html`<${Chart} title="Latency by day" times=${times} step=${DAY} format=${ms}
    series=${[{ name: "p50", values: valuesOf("p50_ms") }, p95]}>
    <${Choice} label="Model" name="latency_of" options=${models.map((name) => [name, name || "All models"])} /><//>`;
}

function NoCalls() {
  const { session, environment } = useContext(Here);
  const [other, text] = environment === "production" ? ["sandbox", "the sandbox"] : ["production", "production"];
  return html`<${Empty}>No calls in this time. They show up once your Router or server gets requests:
    ${session.writes && html` <a href=${to("try")}>try one</a>, or`}
    ${" "}<a href=${to("overview", { environment: other })}>show ${text}</a>.<//>`;
}

function Figures({ rows, since, latency, fallback, cache }) {
  const total = (field) => sum(rows.map((row) => row[field]));
  const calls = total("requests");
  const day = latency.data?.findLast((row) => row.model === null);
  const rescued = fallback.data || {};
  const saved = cache.data || {};
  return html`<dl class="figures">
    <${Figure} name="Spend" value=${usd(total("cost_usd"))} note="${usd(total("charged_usd"))} charged to accounts" />
    <${Figure} name="Calls" value=${count(calls)} />
    <${Figure} name="Errors" value=${count(total("errors"))} note="${percent(total("errors") / calls)} of calls" />
    <${Figure} name="Rescued by a fallback" value=${count(rescued.triggered)}
      note="${percent(rescued.rate)} of calls${since}" />
    <${Figure} name="Latency p50" value=${ms(day?.p50_ms)} note=${day && `p95 ${ms(day.p95_ms)}, on ${day.day}`} />
    <${Figure} name="Cache hit rate" value=${percent(saved.hit_rate)} note="${usd(saved.saved_usd)} saved${since}" />
  </dl>`;
}

/** A table with a heading. Without rows it is there only if it has a text for that, `empty`. */
const Titled = ({ title, ...table }) => (table.rows.length > 0 || table.empty) && html`<h3>${title}</h3>
  <${Table} caption=${title} ...${table} />`;

/** Counts by name, the largest first. */
function Counts({ title, name, counts, empty, unit = "Calls", of = (key) => html`<code>${key}</code>` }) {
  const rows = Object.entries(counts).sort(([, one], [, other]) => other - one);
  const columns = [column(name, ([key]) => of(key)), numeric(unit, ([, value]) => count(value))];
  return html`<${Titled} title=${title} rows=${rows} columns=${columns} empty=${empty} />`;
}

const LATENCY = [
  column("Model", (row) => ModelLink(row.model)), column("Strategy", (row) => row.strategy),
  numeric("Calls", (row) => count(row.count)), numeric("p50", (row) => ms(row.p50_ms)),
  numeric("p95", (row) => ms(row.p95_ms)), numeric("p99", (row) => ms(row.p99_ms)),
];
const ATTEMPTS = [
  column("Model", (row) => ModelLink(row.model)), numeric("Attempts", (row) => count(row.attempts)),
  numeric("Succeeded", (row) => percent(row.success_rate)),
];
const LIMITS = [
  column("Account", (row) => html`<a href=${to("accounts", { account: row.account })}>${row.account}</a>`),
  column("Limit", (row) => LEVELS[row.purse.level]),
  column("Spent", ({ account, purse }) =>
    html`<${Meter} name="${account}, ${purse.name}" used=${purse.spent_usd} limit=${purse.limit_usd} />`),
  numeric("Reserved", (row) => usd(row.purse.reserved_usd)),
];

function Limits({ account, every }) {
  const limits = useRead("console.nearest_limits", { account }, { every });
  const now = new Date();
  const days = new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1, 0)).getUTCDate();
  const empty = html`No limits are set; <a href=${to("accounts")}>accounts</a> can have them.`;
  return html`<${Section} title="Budgets">
    <p class="note">Day ${now.getUTCDate()} of ${days} of this month (UTC)${!account && "; the ten fullest limits"}.</p>
    <${Loaded} of=${limits}>${(rows) =>
      html`<${Table} caption="Limits" columns=${LIMITS} rows=${rows} empty=${empty} />`}<//><//>`;
}

function Incidents() {
  const incidents = useRead("console.incidents", {}, { every: 60 });
  const save = (operation, row) => async (values) => {
    await change(operation, row ?? values);
    incidents.reload();
  };
  const add = html`<${Ask} label="Open an incident" action="Open" act=${save("console.open_incident")}>
    <${Field} label="Title" name="title" required />
    <${Select} label="Severity" name="severity" options=${["minor", "major", "critical"]} />
    <${Field} label="Address of a status page" name="status_url" type="url" hint="Optional, https" /><//>`;
  const resolve = (row) => html`<${Badge} kind="bad">open<//> <${Confirm} label="Resolve" title="Resolve ${row.title}"
    kind="primary" text="It stays in the list." act=${save("console.resolve_incident", { id: row.id })} />`;
  const link = (url) => /^https:/.test(url) && html` <a href=${url} rel="noreferrer">status page</a>`;
  const columns = [
    column("Incident", (row) => html`${row.title}${link(row.status_url)}`),
    column("Severity", (row) => html`<${Badge} kind=${row.severity === "minor" ? "warn" : "bad"}>${row.severity}<//>`),
    column("Opened", (row) => html`<${Time} at=${row.started_at} />`),
    column("Resolved", (row) => (row.resolved_at ? html`<${Time} at=${row.resolved_at} />` : resolve(row))),
  ];
  const openFirst = (one, other) => Boolean(one.resolved_at) - Boolean(other.resolved_at);
  return html`<${Section} title="Incidents" actions=${add}>
    <${Loaded} of=${incidents}>${(data) => html`<${Table} caption="Incidents" columns=${columns}
      rows=${[...data].sort(openFirst)} keyOf=${(row) => row.id} empty="There were no incidents." />`}<//><//>`;
}

const CIRCUITS = [
  column("Model", (row) => ModelLink(row.model)),
  column("Fault", (row) => row.fault || "opened by another process, or the key was refused"),
  numeric("Next try", (row) => `in ${ms(row.probe_in_s * 1000)}`),
];

function Server({ status }) {
  const { limits, storage, traces } = status;
  const refused = status.providers.filter((provider) => provider.keys_refused);
  return html`<${Section} title="This process">
    <p class="note">The process that serves this page, since it started. Other processes are not included.</p>
    <dl class="figures">
      <${Figure} name="Rate limits are kept in" value=${limits.place}
        note=${limits.share && `${limits.share} of each limit, while the coordination backend is unreachable`} />
      <${Figure} name="Storage" value=${storage.kind} kind=${storage.failing ? "bad" : ""}
        note=${storage.failing ? "the last write failed" : storage.database_bytes && bytes(storage.database_bytes)} />
      <${Figure} name="Disk free" value=${bytes(storage.disk_free_bytes)} />
      <${Figure} name="Traces to write" value=${count(traces.waiting)}
        note="${count(traces.lost)} lost, ${count(traces.refused)} refused" />
      <${Figure} name="Keys refused by vendors" value=${count(sum(refused.map((provider) => provider.keys_refused)))}
        note=${refused.map((provider) => provider.name).join(", ")} />
    </dl>
    <div class="columns">
      <div><${Titled} title="Open circuits" columns=${CIRCUITS} rows=${status.circuits} empty="None." /></div>
      <div><${Counts} title="Refusals" name="Code" counts=${status.refusals} empty="None." /></div>
      <div><${Counts} title="Webhook deliveries" name="State" unit="Attempts" counts=${status.deliveries}
        empty="None." /></div>
    </div><//>`;
}

const Problems = ({ problems }) => problems.length > 0 && html`<div class="failure" role="alert"><b>Problems</b>
  <ul>${problems.map((problem) => html`<li key=${problem}>${problem}</li>`)}</ul></div>`;

export function Overview({ params }) {
  const { scope, environment } = useContext(Here);
  const range = RANGES[params.range] ? params.range : "7d";
  const [, step, steps] = RANGES[range];
  const isAll = scope === ALL;
  const every = isAll ? 300 : 60; // reports on all accounts read each of them
  const hour = Math.floor(Date.now() / 1000 / HOUR);
  const times = useMemo(() => timesOf(step, steps), [range, hour]);
  const days = useMemo(() => timesOf(DAY, range === "30d" ? 30 : 7), [range, hour]); // of latency
  const of = isAll ? { all_accounts: true } : { account: scope };
  const owner = { ...of, environment };
  const dates = { start_date: dayOf(times[0]), end_date: dayOf(times.at(-1)) };
  const report = { ...dates, ...owner };
  const groups = useRead("traces.usage_groups", of);
  const groupBy = !isAll && params.group_by === "account" ? "model" : params.group_by || "model";
  const bucket = step === HOUR ? "hour" : "day";
  const usage = useRead("traces.usage", { ...report, group_by: groupBy, bucket }, { every });
  const latency = useRead("traces.latency_report", report, { every });
  const byDay = useRead("traces.latency_by_day", { ...report, start_date: dayOf(days[0]) }, { every });
  const fallback = useRead("traces.fallback_report", report, { every });
  const cache = useRead("traces.cache_report", report, { every });
  const status = useRead("router.status", {}, { every: 10 });
  const since = range === "24h" ? "yesterday and today (UTC)" : "";
  const note = html`<span class="note">${since}</span>`;
  const options = (groups.data || [groupBy]).map((name) => [name, nameOf(name)]);
  const choices = html`<${Ranges} view="overview" params=${params} chosen=${range} /><${Choice}
    label="Group by" name="group_by" value=${groupBy} options=${options} />`;
  const charts = (rows, chart) => html`<div class="charts">
    <${UsageChart} title="Spend, paid to providers" field="cost_usd" format=${usd} ...${chart} />
    <${UsageChart} title="Calls" field="requests" format=${count} ...${chart} />
    <${UsageChart} title="Errors" field="errors" format=${count} ...${chart} />
    <${Loaded} of=${byDay}>${(data) =>
      html`<${LatencyChart} days=${data} times=${days} model=${params.latency_of} />`}<//>
  </div>`;
  return html`<${View} title="Overview" actions=${choices}>
    ${status.data && html`<${Problems} problems=${status.data.problems} />`}
    <${Loaded} of=${usage}>${({ data }) => {
      const rows = data.filter((row) => times.includes(secondsOf(row.bucket_start)));
      if (!rows.length) return html`<${NoCalls} />`;
      return html`<${Figures} rows=${rows} since=${since && `, ${since}`} latency=${byDay} fallback=${fallback}
        cache=${cache} />${charts(rows, { times, step, grouped: byGroup(rows, times, groupBy) })}`;
    }}<//>
    <div class="columns">
      <${Loaded} of=${latency}>${({ data }) => data.length > 0 && html`
        <${Section} title="Latency by model" actions=${note}>
        <${Table} caption="Latency" columns=${LATENCY} rows=${data} /><//>`}<//>
      <${Loaded} of=${fallback}>${(data) => data.candidates.length > 0 && html`
        <${Section} title="Rescues" actions=${note}>
        <${Titled} title="Attempts by model" columns=${ATTEMPTS} rows=${data.candidates} />
        <${Counts} title="Why a fallback served" name="Reason" counts=${data.reasons} />
        <${Counts} title="Models skipped" name="Model" counts=${data.passed_by} of=${ModelLink} /><//>`}<//>
    </div>
    <${Limits} account=${isAll ? undefined : scope} every=${every} /><${Incidents} />
    <${Loaded} of=${status}>${(data) => html`<${Server} status=${data} />`}<//>
  <//>`;
}
