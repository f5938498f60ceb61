// The list of traces: a filter, rows read as they are scrolled to, and those that arrive meanwhile.

import { read } from "../api.js";
import { Empty, Failure, Field, Form, Here, Select, Time, View, count, go, html, ms, routeOf } from "../lib.js";
import { setParams, to, usd, useContext, useEffect, useMemo, useOwner, useRef, useState } from "../lib.js";

const PAGE = 100;
const POLL_MS = 2000;
const LATE_MS = 120000; // a call is stored when it ends, under the time when it began
const OLD_MS = 3600000; // polls look no further back, however old the newest trace is
const NARROW = matchMedia("(max-width: 860px)"); // as in page.css, with the heights of rows

/** Kind of badge by status. */
export const STATUS = { completed: "good", partial: "warn", failed: "bad", budget_exceeded: "bad", cancelled: "plain" };
const STATUSES = [["", "Any"], ...Object.keys(STATUS).map((name) => [name, name.replace("_", " ")])];
const TRACE_KINDS = [["", "Any"], ["route", "Calls"], ["agent", "Agent runs"]];
const FLAGS = [["fallback_used", true, "fallback"], ["cache_hit", true, "cache hit"],
  ["compromised", true, "compromised"], ["kind", "agent", "agent"]];
const TOGGLES = [...FLAGS.slice(0, 3).map(([name, , text]) => [`${name}=true`, text]), ['error!=""', "error"]];

// --- The filter: terms with commas between them. The server reads it; here terms are only put in and taken out.

const filterTerms = (filter) => (filter.match(/(?:"(?:[^"\\]|\\.)*"|[^,])+/gs) || []).map((term) => term.trim());
const quoted = (text) => (/^[^\s",=<>!]+$/.test(text) ? text : `"${text.replace(/["\\]/g, "\\$&")}"`);

/** Change the filter of the address: without the terms that `drop` selects, and with one more. */
function setTerm(drop, term) {
  const { filter = "" } = routeOf(location.hash).params;
  const terms = filterTerms(filter).filter((other) => other !== term && !drop(other));
  setParams({ filter: (term ? [...terms, term] : terms).join(",") });
}

/** A value that becomes a term of the filter with a click. */
function Value({ name, value, text = value, kind = "", tab }) {
  if (value == null || value === "") return "–";
  if (typeof value === "object" || /[=!<>,"]|^\s|\s$/.test(name)) return `${text} `; // no term names it
  const term = `${name}=${quoted(`${value}`)}`;
  return html`<button type="button" class="value ${kind}" tabindex=${tab} title="Filter by ${term}"
    onClick=${() => setTerm(() => false, term)}>${text}</button>`;
}

const COLUMNS = [
  ["Time", "time", ({ id, created_at: at }, tab) =>
    html`<a href=${to(`traces/${id}`)} tabindex=${tab}><${Time} at=${at} /></a>`],
  ["Status", "status", ({ status }, tab) =>
    html`<${Value} name="status" value=${status} text=${status.replace("_", " ")} kind=${STATUS[status]}
      tab=${tab} />`],
  ["Model", "model", (trace, tab) => html`<${Value} name="model" value=${trace.selected_model} tab=${tab} />`],
  ["Policy", "policy", ({ policy_id: id, policy_version: version }, tab) =>
    (id ? html`<${Value} name="policy_id" value=${id} text=${version || id} tab=${tab} />` : version || "–")],
  ["Latency", "latency number", (trace) => ms(trace.duration_ms)],
  ["Cost", "cost number", (trace) => usd(trace.cost_usd)],
  ["Tokens", "tokens number", ({ tokens }) => `${count(tokens.input)} + ${count(tokens.output)}`],
  ["Flags", "flags", (trace, tab) => FLAGS.filter(([name, value]) => trace[name] === value).map(([name, value, text]) =>
    html`<${Value} name=${name} value=${value} text=${text} tab=${tab} />`)],
  ["Error", "error", ({ error }, tab) => error && html`<${Value} name="error" value=${error}
    text=${error.replace(/^router\./, "")} kind="bad" tab=${tab} />`],
  ["Metadata", "metadata", (trace, tab) => Object.entries(trace.metadata).slice(0, 4).map(([name, value]) => {
    const text = `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`;
    return html`<${Value} name="metadata.${name}" value=${value} text=${text} tab=${tab} />`;
  })],
];

/** A row of the list. Scrolling draws all of them again, so each keeps what it drew. */
function Row({ trace, index, height, isActive }) {
  const open = ({ target }) => target.closest("a, button") || `${getSelection()}` || go(`traces/${trace.id}`);
  return useMemo(() => html`<div role="row" id="row-${index}" class="trace" aria-rowindex=${index + 2}
    aria-selected=${isActive} style=${{ transform: `translateY(${index * height}px)` }} onClick=${open}>
    ${COLUMNS.map(([, kind, of]) => html`<span role="gridcell" class=${kind}>${of(trace, isActive ? 0 : -1)}</span>`)}
  </div>`, [trace, index, height, isActive]);
}

// --- The rows

const keyOf = (trace) => trace.created_at + trace.id;

class Rows {
  constructor(key, args) {
    Object.assign(this, { key, args, rows: [], waiting: [], hasMore: true, top: 0, active: null });
  }

  /** Read the next page; `again`: the first, in place of all rows. */
  async load(again = !this.isRead) {
    if (this.isLoading || !(again || this.hasMore)) return;
    this.isLoading = true;
    try {
      const page = await read("traces.query", { ...this.args, limit: PAGE, cursor: again ? undefined : this.cursor });
      if (again) Object.assign(this, { rows: [], waiting: [], isBehind: false, active: null, isRead: true });
      this.rows = this.rows.concat(page.data);
      Object.assign(this, { error: null, cursor: page.next_cursor, hasMore: page.has_more });
    } catch (error) {
      this.error = error;
    }
    this.isLoading = false;
  }

  /** Read what has arrived since, and have it wait. */
  async poll() {
    if (this.isLoading || !this.isRead || this.isBehind) return;
    const newest = this.rows.length ? Date.parse(this.rows[0].created_at) : 0;
    const from = new Date(Math.max(newest, Date.now() - OLD_MS) - LATE_MS).toISOString();
    try {
      const since = this.args.since > from ? this.args.since : from;
      const page = await read("traces.query", { ...this.args, since, limit: PAGE }, { polling: true });
      const known = new Set([...this.waiting, ...this.rows].map((row) => row.id));
      const last = this.hasMore && this.rows.length ? keyOf(this.rows.at(-1)) : ""; // older ones come with their page
      const fresh = page.data.filter((row) => !known.has(row.id) && keyOf(row) > last);
      const isBehind = page.has_more && fresh.length === PAGE; // those in between are not known
      Object.assign(this, { error: null, isBehind, waiting: fresh.concat(this.waiting) });
    } catch (error) {
      this.error = error;
    }
  }

  /** Show what waits. */
  async admit() {
    if (this.isBehind) { await this.load(true); return; }
    this.rows = this.waiting.concat(this.rows).sort((a, b) => (keyOf(a) < keyOf(b) ? 1 : -1));
    Object.assign(this, { waiting: [], active: null });
  }
}

let shown = {}; // outlives the view, so that going back finds the rows and the place again

/** The rows of a query, kept up to date. New ones wait while the reader is at others, which stay where they are. */
function useRows(args, isLive) {
  const [, setRound] = useState(0);
  const redraw = () => setRound((round) => round + 1);
  const key = JSON.stringify([useContext(Here).session.token, args]);
  const list = useMemo(() => { shown = shown.key === key ? shown : new Rows(key, args); return shown; }, [key]);
  useEffect(() => { if (!list.isRead) list.load().then(redraw); }, [list]);
  useEffect(() => {
    let timer;
    const wait = () => { timer = isLive && setTimeout(poll, POLL_MS); };
    const poll = async () => {
      if (document.visibilityState === "visible") await list.poll();
      if (list.waiting.length && list.top === 0 && list.active === null) await list.admit();
      redraw();
      if (timer) wait();
    };
    wait();
    return () => { clearTimeout(timer); timer = null; };
  }, [list, isLive]);
  return { list, redraw };
}

function Grid({ list, redraw, grid }) {
  const height = NARROW.matches ? 68 : 36;
  const first = Math.max(0, Math.floor(list.top / height / 8) * 8 - 8);
  const end = Math.min(list.rows.length, first + Math.ceil(screen.height / height) + 24);
  useEffect(() => {
    if (list.isRead && end > list.rows.length - PAGE) list.load().then(redraw);
  }, [list, end, list.rows.length]);
  useEffect(() => { grid.current.scrollTop = list.top; }, [list]);
  useEffect(() => { NARROW.onchange = redraw; }, []);
  const scroll = ({ currentTarget: { scrollTop } }) => {
    const isFar = Math.floor(scrollTop / height / 8) !== Math.floor(list.top / height / 8);
    list.top = scrollTop;
    if (isFar) redraw();
  };
  const press = (event) => {
    const page = Math.floor(grid.current.clientHeight / height) - 2;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    const active = event.target === grid.current && list.rows[list.active];
    if (event.key === "Enter" && active) go(`traces/${active.id}`);
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const from = list.active ?? Math.ceil(list.top / height) - Math.sign(move);
    list.active = Math.max(0, Math.min(list.rows.length - 1, from + move));
    const top = list.active * height;
    grid.current.scrollTop = Math.min(top, Math.max(list.top, top + 2 * height - grid.current.clientHeight));
    grid.current.focus();
    redraw();
  };
  const rows = list.rows.slice(first, end).map((trace, offset) => html`<${Row} key=${trace.id} trace=${trace}
    index=${first + offset} height=${height} isActive=${first + offset === list.active} />`);
  const isActiveShown = list.active !== null && list.active >= first && list.active < end;
  return html`<div ref=${grid} class="traces" role="grid" tabindex="0" aria-label="Traces, newest first"
    aria-rowcount=${list.hasMore ? -1 : list.rows.length + 1} onScroll=${scroll} onKeyDown=${press}
    aria-activedescendant=${isActiveShown ? `row-${list.active}` : undefined}>
    <div role="rowgroup" class="head"><div role="row" aria-rowindex="1" class="trace">
      ${COLUMNS.map(([name, kind]) => html`<span role="columnheader" class=${kind}>${name}</span>`)}</div></div>
    <div role="rowgroup" class="rows" style=${{ height: `${list.rows.length * height}px` }}>${rows}</div></div>`;
}

// --- The controls

function Controls({ filter, times }) {
  const terms = filterTerms(filter);
  const choice = (label, name, options) => html`<${Select} label=${label} options=${options}
    value=${options.find(([value]) => terms.includes(`${name}=${value}`))?.[0]}
    onChange=${({ target: { value } }) => setTerm((t) => t.startsWith(`${name}=`), value && `${name}=${value}`)} />`;
  const time = (label, name) => {
    const at = new Date(times[name]); // the field is in the viewer's zone, the address in UTC
    const local = at.getTime() && new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
    return html`<${Field} label=${label} type="datetime-local" value=${local || ""}
      onChange=${({ target: { value } }) => setParams({ [name]: value && new Date(value).toISOString() })} />`;
  };
  const remove = (term) => setTerm((other) => other === term);
  return html`<div class="filter">
    <${Form} action="Apply" kind="plain" key=${filter}
      onSubmit=${async (values) => setParams({ filter: values.filter })}>
      <${Field} label="Filter" name="filter" type="search" value=${filter} spellcheck=${false} autocomplete="off"
        hint="Terms with commas between them: status=failed, cost_usd>=0.01, metadata.team=search" /><//>
    <details open=${!NARROW.matches}><summary>More filters</summary><div class="actions">
      ${choice("Status", "status", STATUSES)}${choice("Kind", "kind", TRACE_KINDS)}
      ${time("Since", "since")}${time("Until", "until")}
      ${TOGGLES.map(([term, text]) => html`<button type="button" class="toggle" aria-pressed=${terms.includes(term)}
        onClick=${() => (terms.includes(term) ? remove(term) : setTerm(() => false, term))}>${text}</button>`)}
    </div></details>
    ${terms.length > 0 && html`<ul class="chips" aria-label="Terms of the filter">${terms.map((term) => html`<li>
      <button type="button" aria-label="Remove ${term}" onClick=${() => remove(term)}>${term} ✕</button></li>`)}
    </ul>`}</div>`;
}

export function Traces() {
  const { filter = "", since, until, paused } = useContext(Here).route.params;
  const grid = useRef();
  const isLive = !paused && !until;
  const { list, redraw } = useRows({ ...useOwner(), filter, since, until }, isLive);
  const waiting = list.waiting.length;
  const admit = async () => {
    grid.current.scrollTop = 0;
    await list.admit();
    redraw();
    grid.current.focus();
  };
  const live = html`<label><input type="checkbox" role="switch" checked=${isLive} disabled=${!!until}
    onChange=${() => setParams({ paused: isLive ? "1" : "" }, { replace: true })} /> Live</label>`;
  const none = filter || since || until ? html`No trace matches. <a href=${to("traces")}>Show all traces</a>`
    : html`No traces of this account and environment yet. Calls show up as they end: <a href=${to("try")}>try one</a>.`;
  return html`<${View} title="Traces" actions=${live}>
    <${Controls} filter=${filter} times=${{ since, until }} />
    ${list.error && html`<${Failure} error=${list.error} />`}
    <p class="arrived" aria-live="polite">${waiting > 0 && html`<button type="button" class="primary" onClick=${admit}>
      ${list.isBehind && "more than "}${count(waiting)} new ${waiting > 1 ? "traces" : "trace"}</button>`}</p>
    ${list.rows.length > 0 && html`<${Grid} list=${list} redraw=${redraw} grid=${grid} />`}
    ${list.isRead && !list.rows.length && html`<${Empty}>${none}<//>`}
    ${!list.isRead && !list.error && html`<p class="loading" role="status">Loading…</p>`}<//>`;
}
