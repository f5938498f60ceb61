// What all views share: rendering, the address, reading from the server, formats, and the parts of a view.

import { Fragment, createContext, h, render } from "./vendor/preact.mjs";
import { useContext, useEffect, useErrorBoundary, useId, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.js";
import { read } from "./api.js";

export const html = htm.bind(h);
export { Fragment, render, useContext, useEffect, useErrorBoundary, useId, useMemo, useRef, useState };

// --- The address: #/view/part?key=value. What a view shows is in it, so that each view is a link to share.

/** The value of the parameter `account` for all accounts, in views that cover them. */
export const ALL = "*";

/** The session ({operator, writes}), the names of the accounts, the `account` and `environment` that are looked at, the
 * `scope`: the account or ALL, and the account's name as `unknown` if there is none. */
export const Here = createContext(null);

export function routeOf(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const params = Object.fromEntries(new URLSearchParams(query));
  return { view: parts[0] || "overview", parts: parts.slice(1), params };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; } // an address that somebody typed
}

const OF_ALL_VIEWS = ["account", "environment"]; // parameters that links to other views pass on

/** The address of a view: a path, or a list of its parts. Parameters that are empty are left out. */
export function to(path, params = {}) {
  const here = routeOf(location.hash).params;
  const all = { ...Object.fromEntries(OF_ALL_VIEWS.map((name) => [name, here[name]])), ...params };
  const query = new URLSearchParams(Object.entries(all).filter(([, value]) => value !== undefined && value !== ""));
  const parts = Array.isArray(path) ? path : path.split("/");
  return `#/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

export const go = (path, params) => { location.hash = to(path, params); };

/** Change parameters of this view's address. `replace`: without a step in the history. */
export function setParams(changes, { replace = false } = {}) {
  const { view, parts, params } = routeOf(location.hash);
  const address = to([view, ...parts], { ...params, ...changes });
  if (!replace) location.hash = address;
  else { history.replaceState(null, "", address); dispatchEvent(new HashChangeEvent("hashchange")); }
}

/** The account and environment that are looked at, for operations that take them. */
export function useOwner() {
  const { account, environment } = useContext(Here);
  return { account, environment };
}

// --- Reading

/** {data, error, isLoading, reload} of an operation. `every`: seconds until it is read again while the page is seen. */
export function useRead(name, args = {}, { every, skip = false } = {}) {
  const [state, setState] = useState({ isLoading: !skip });
  const [round, setRound] = useState(0);
  const key = JSON.stringify([name, args]);
  useEffect(() => {
    if (skip) { setState({ isLoading: false }); return undefined; }
    const abort = new AbortController();
    const load = async (polling) => {
      try {
        const data = await read(name, args, { polling, signal: abort.signal });
        if (!abort.signal.aborted) setState({ data, isLoading: false, key });
      } catch (error) {
        if (!abort.signal.aborted) setState((old) => ({ ...old, error, isLoading: false }));
      }
    };
    setState((old) => ({ data: old.key === key ? old.data : undefined, isLoading: true, key }));
    load(false);
    const timer = every && setInterval(() => document.visibilityState === "visible" && load(true), every * 1000);
    return () => { abort.abort(); clearInterval(timer); };
  }, [key, round, skip, every]);
  return { ...state, reload: () => setRound(round + 1) };
}

// --- Formats: numbers have units, and lack of a number is a dash

const number = (options) => new Intl.NumberFormat("en", options);
const NONE = "–";
const whole = number({});
const cents = number({ minimumFractionDigits: 2, maximumFractionDigits: 2 });
const small = number({ maximumSignificantDigits: 2 });
const three = number({ maximumSignificantDigits: 3 });

export const count = (value) => (value == null ? NONE : whole.format(value));
export const usd = (value) => {
  if (value == null) return NONE;
  const amount = Math.abs(value);
  return `${value < 0 ? "−" : ""}$${amount >= 0.1 || amount === 0 ? cents.format(amount) : small.format(amount)}`;
};
export const ms = (value) => {
  if (value == null) return NONE;
  if (value < 1000) return `${three.format(value)} ms`;
  return value < 120000 ? `${three.format(value / 1000)} s` : `${three.format(value / 60000)} min`;
};
export const percent = (share) => (share == null ? NONE : `${three.format(share * 100)} %`);
export const bytes = (value) => {
  if (value == null) return NONE;
  const step = Math.min(4, Math.floor(Math.log(value || 1) / Math.log(1024)));
  return `${three.format(value / 1024 ** step)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
};
const local = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** A time in the viewer's zone, with UTC on hover. `at`: RFC 3339 or Unix seconds. */
export function Time({ at }) {
  if (at == null) return NONE;
  const date = new Date(typeof at === "number" ? at * 1000 : at);
  const utc = `${date.toISOString().replace("T", " ").replace("Z", "")} UTC`;
  return html`<time datetime=${date.toISOString()} title=${utc}>${local.format(date)}</time>`;
}

// --- Parts of a view

let wasViewed = false;

/** A view: its heading, what it can do, and its content. */
export function View({ title, actions, children }) {
  const ref = useRef();
  const { unknown } = useContext(Here) ?? {};
  useEffect(() => { document.title = `${title} · routewright`; }, [title]);
  useEffect(() => {
    // what led here had the focus, and is gone
    if (wasViewed && document.activeElement === document.body) ref.current.focus();
    wasViewed = true;
  }, []);
  return html`<main id="view" tabindex="-1" ref=${ref}>
    <header class="title"><h1>${title}</h1><div class="actions">${actions}</div></header>
    ${unknown && html`<p class="failure" role="alert">No account has the name “${unknown}”.</p>`}
    ${children}
  </main>`;
}

export const Section = ({ title, actions, children }) => html`<section>
  <header class="title"><h2>${title}</h2><div class="actions">${actions}</div></header>${children}</section>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
export const Badge = ({ kind = "plain", children }) => html`<span class="badge ${kind}">${children}</span>`;
export const Failure = ({ error }) => html`<p class="failure" role="alert">${error.message}</p>`;

/** What was read, by `children(data)`; until then that it loads, or why not. */
export function Loaded({ of, children }) {
  if (of.error && !of.data) return html`<${Failure} error=${of.error} />`;
  if (of.data === undefined) return html`<p class="loading" role="status">Loading…</p>`;
  return html`<${Fragment}>${of.error && html`<${Failure} error=${of.error} />`}${children(of.data)}<//>`;
}

/** A figure with its name; `note` explains it. */
export const Figure = ({ name, value, note, kind }) =>
  html`<div class="figure ${kind || ""}"><dt>${name}</dt><dd>${value}</dd>
    ${note && html`<dd class="note">${note}</dd>`}</div>`;

/** Names with their values: [[name, value]]. */
export const Pairs = ({ rows }) => html`<dl class="pairs">${rows.map(([name, value]) =>
  html`<div><dt>${name}</dt> <dd>${value}</dd></div>`)}</dl>`;

/** `columns`: [{name, of(row), kind, changes}], without those that are false. `kind`: "number", or another class.
 * `changes`: only for those who may write. `caption` names the table for screen readers. */
export function Table({ caption, columns: all, rows, keyOf, empty }) {
  const { writes } = useContext(Here).session;
  const columns = all.filter((column) => column && (writes || !column.changes));
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.kind}>${column.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${keyOf ? keyOf(row) : index}>
      ${columns.map((column) => html`<td class=${column.kind}>${column.of(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** Columns of text and of numbers. */
export const column = (name, of) => ({ name, of });
export const numeric = (name, of) => ({ name, of, kind: "number" });

/** How much of a limit is used. */
export function Meter({ name, used, limit, format = usd }) {
  const share = limit ? Math.min(1, used / limit) : 0;
  const of = limit ? `, ${percent(used / limit)}` : "";
  const text = limit == null ? `${format(used)}, no limit` : `${format(used)} of ${format(limit)}${of}`;
  return html`<div class="meter ${share > 0.8 ? "high" : ""}">
    ${limit != null && html`<progress aria-label=${name} max="1" value=${share}></progress>`}
    <span>${text}</span></div>`;
}

/** A field of a form; `children` is the control if it is not an input. */
export function Field({ label, hint, name, children, ...input }) {
  const id = useId();
  const hintId = hint && `${id}-hint`;
  const control = { id, name, "aria-describedby": hintId, ...input };
  useEffect(() => { if (input.autofocus) document.getElementById(id).focus(); }, []); // also where it came late
  return html`<div class="field"><label for=${id}>${label}</label>
    ${children ? children(control) : html`<input ...${control} />`}
    ${hint && html`<small id=${hintId}>${hint}</small>`}</div>`;
}

export const Select = ({ options, value, ...field }) => html`<${Field} ...${field}>
  ${(control) => html`<select ...${control}>${options.map((option) => {
    const [key, text] = Array.isArray(option) ? option : [option, option];
    return html`<option value=${key} selected=${key === value}>${text}</option>`;
  })}</select>`}<//>`;

/** A select for the parameter `name` of the address. */
export const Choice = ({ name, value = useContext(Here).route.params[name] ?? "", ...rest }) =>
  html`<${Select} value=${value} onChange=${(event) => setParams({ [name]: event.target.value })} ...${rest} />`;

export const Area = ({ value, ...field }) => html`<${Field} ...${field}>
  ${(control) => html`<textarea ...${control} value=${value}></textarea>`}<//>`;

/** What the fields of a form hold, by name; empty ones are undefined, numbers (`type=number`) are numbers.
 * Fields for money and counts have `inputmode="decimal"`: what is no number stays text, for the API to refuse. With
 * `type=number` a browser calls it empty, which would stand for no limit. */
export function valuesOf(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name) continue;
    if (field.type === "checkbox") values[field.name] = field.checked;
    else if (field.inputMode === "decimal" && field.value.trim() !== "") values[field.name] = numberOr(field.value);
    else if (field.value !== "") values[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  return values;
}

const numberOr = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);

/** A form that runs `onSubmit(values)` and shows its error. Its button is `action`. */
export function Form({ action, kind, onSubmit, children, cancel }) {
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    try { await onSubmit(valuesOf(event.target)); } catch (failure) { setError(failure); }
    setBusy(false);
  };
  return html`<form onSubmit=${submit} novalidate>${children}${error && html`<${Failure} error=${error} />`}
    <div class="actions"><button class=${kind || "primary"} disabled=${isBusy}>${isBusy ? "Working…" : action}</button>
    ${cancel && html`<button type="button" autofocus=${kind === "danger"} onClick=${cancel}>Cancel</button>`}
    </div></form>`;
}

/** A modal dialog, closed with Escape or `onClose`. */
export function Dialog({ title, onClose, children }) {
  const ref = useRef();
  const id = useId();
  useEffect(() => {
    const dialog = ref.current;
    dialog.showModal(); // which would focus the button that closes it
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("form :is(input, select, textarea, button)"))?.focus();
  }, []);
  return html`<dialog ref=${ref} aria-labelledby=${id} onClose=${onClose}>
    <header class="title"><h2 id=${id}>${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${() => ref.current.close()}>✕</button></header>
    ${children}</dialog>`;
}

/** A button that opens a form. After `act(values)` its dialog shows `result(what it returned)`, or else closes. Without
 * the right to write it is not there. */
export function Ask({ label, title, kind, ...form }) {
  const [isOpen, setOpen] = useState(false);
  if (!useContext(Here).session.writes) return null;
  const open = () => setOpen(true);
  const close = () => setOpen(false);
  return html`<button type="button" class=${kind} aria-haspopup="dialog" onClick=${open}>${label}</button>
    ${isOpen && html`<${Dialog} title=${title || label} onClose=${close}>
      <${Question} action=${label} kind=${kind} close=${close} ...${form} /><//>`}`;
}

function Question({ close, act, result, ...form }) {
  const [answer, setAnswer] = useState();
  const submit = async (values) => {
    const value = await act(values);
    if (result) setAnswer(value);
    else close();
  };
  return answer === undefined ? html`<${Form} ...${form} cancel=${close} onSubmit=${submit} />` : result(answer);
}

/** A button that asks before it runs `act()`. `text` says what will happen. */
export const Confirm = ({ text, act, ...rest }) =>
  html`<${Ask} kind="danger" act=${() => act()} ...${rest}><p>${text}</p><//>`;

/** A button that copies a text, where the browser has a clipboard for the page. */
export function Copy({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => { await navigator.clipboard.writeText(text); setCopied(true); };
  return navigator.clipboard && html`<button type="button" onClick=${copy}>${isCopied ? "Copied" : "Copy"}</button>`;
}

/** A new secret, shown this once. */
export function NewSecret({ text, children }) {
  const ref = useRef();
  useEffect(() => { ref.current.focus(); }, []);
  return html`<div class="secret" role="status" tabindex="-1" ref=${ref}>
    <p>${children} It is not shown again.</p><code>${text}</code><${Copy} text=${text} /></div>`;
}
