// Keys of an account, and of operators: a table, and forms that create, change and revoke them.

import { Area, Ask, Badge, Confirm, Field, Here, Loaded, NewSecret, Section, Select, Table } from "../lib.js";
import { Time, html, setParams, to, useContext, useRead } from "../lib.js";
import { Amount, Checks, MoneyFields, RateFields, Spent } from "./terms.js";
import { changesOf, inWords, periodsIn, periodsOf, ratesOf, runner } from "./terms.js";

export const OPERATORS = "_system";

/** The keys of an account. `standings`: of those with a budget. */
export function Keys({ account, standings = [], params, title, onChange = () => {} }) {
  const keys = useRead("console.keys", { account });
  const choices = useRead("page.choices");
  const ownId = useContext(Here).session.key_id;
  const ofOperators = account === OPERATORS;
  const scopes = choices.data?.scopes;
  const run = runner({ account }, () => { keys.reload(); onChange(); });
  const form = (key) => html`<${Loaded} of=${choices}>${() => html`<${Fields} apiKey=${key} scopes=${scopes} />`}<//>`;
  const create = !ofOperators && html`<${Ask} label="Create a key"
    act=${(values) => run("console.create_key", { environment: values.environment, ...formTerms(values, scopes) })}
    result=${({ secret, key }) => html`<${NewSecret} text=${secret}>This is the key “${key.name}”.<//>`}>
    ${form()}<//>`;
  const effectOf = (key) => (ofOperators ? (key.id === ownId ? OWN : "") : MARKS);
  const edit = (key) => html`<div class="actions">${!ofOperators && html`<${Ask} label="Change"
    title=${`Change the key ${key.name}`} act=${(values) => run("console.change_key",
      { key_id: key.id, ...changesOf(storedTerms(key), formTerms(values, scopes)) })}>${form(key)}<//>`}
    <${Confirm} label="Revoke" title=${`Revoke the key ${key.name}`}
      act=${() => run("console.revoke_key", { key_id: key.id })}
      text=${`Within two seconds the key is refused everywhere, for good. ${effectOf(key)}`} /></div>`;
  const money = Object.fromEntries(standings.map((standing) => [standing.key.id, standing]));
  const columns = [
    { name: "Name", kind: "wide", of: ({ id, name }) =>
      html`${name}${id === ownId && html` <${Badge} kind="good">you<//>`}<br /><small class="note">${id}</small>` },
    { name: "Key", kind: "word", of: (key) => html`<code>${key.prefix}…</code>` },
    !ofOperators && { name: "Environment", kind: "word", of: (key) => key.environment },
    { name: "Scopes", of: (key) => key.scopes?.join(", ") ?? "all" },
    !ofOperators && { name: "Limits", of: limitsOf },
    !ofOperators && { name: "Spent", kind: "wide", of: (key) => budgetsOf(money[key.id]) },
    { name: "Created", of: (key) => html`<${Time} at=${key.created_at} />` },
    { name: "State", of: stateOf },
    { name: "Actions", changes: true, of: (key) => !key.revoked_at && edit(key) },
  ];
  const withRevoked = params.keys === "all";
  const command = ofOperators ? "_system --name ada --scope console:write" : `${word(account)} --name website`;
  return html`<${Section} title=${title} actions=${create}>
    ${ofOperators && html`<p class="note">Operators sign in to this page with these keys, which open nothing
      else. The command line makes them: <code>routewright keys create ${command}</code></p>`}
    <${Loaded} of=${keys}>${(all) => {
      const active = all.filter((key) => !key.revoked_at);
      const rows = withRevoked ? all : active;
      return html`<${Table} caption=${title} columns=${columns} rows=${rows} keyOf=${(key) => key.id}
          empty=${html`No active keys. Run <code>routewright keys create ${command}</code>`} />
        ${all.length > active.length && html`<button type="button" class="quiet"
          onClick=${() => setParams({ keys: withRevoked ? "" : "all" })}>
          ${withRevoked ? "Hide revoked keys" : `Show revoked keys (${all.length - active.length})`}</button>`}`;
    }}<//><//>`;
}

/** A text as one word of a shell. */
const word = (text) => (/^[\w.][\w.-]*$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

const OWN = "You signed in with it, and will be signed out.";
const MARKS = "Traces of its calls in the last 24 hours, and of any later ones, are marked compromised.";

const limitsOf = ({ limits, models, policies }) => html`${inWords(limits, models || policies ? "" : "none")}
  ${models && html`<div><span class="note">Models</span> ${models.join(", ")}</div>`}
  ${policies && html`<div><span class="note">Policies</span> ${policies.join(", ")}</div>`}`;

const BUDGETS = [["total", "Total"], ["day", "Today"], ["week", "This week"], ["month", "This month"]];
const budgetsOf = (standing) => (standing ? BUDGETS.map(([name, label]) =>
  standing[name] && html`<${Spent} label=${label} purse=${standing[name]} />`) : "–");

function stateOf({ account, environment, revoked_at: at }) {
  if (!at) return html`<${Badge} kind="good">active<//>`;
  const marked = to("traces", { account, environment, filter: "compromised=true" });
  return html`<${Badge} kind="bad">revoked<//> <${Time} at=${at} />
    ${account !== OPERATORS && html`<br /><a href=${marked}>Marked traces</a>`}`;
}

/** The terms of a key as stored, and of what a form holds. All scopes are null: those to come are included. */
const storedTerms = ({ name, scopes, models, policies, budget_usd, limits, ...key }) =>
  ({ name, scopes, models, policies, budget_usd, limits: ratesOf(limits), ...periodsIn(key) });
function formTerms({ name = null, models, policies, budget_usd = null, ...values }, all) {
  const scopes = all.filter((scope) => values[scope]);
  return { name, scopes: scopes.length === all.length ? null : scopes, models: linesOf(models),
    policies: linesOf(policies), budget_usd, limits: ratesOf(values), ...periodsOf(values) };
}

function linesOf(text = "") {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return lines.length ? lines : null;
}

function Fields({ apiKey: key, scopes }) {
  return html`<${Field} label="Name" name="name" defaultValue=${key?.name ?? ""} autocomplete="off" autofocus />
    ${!key && html`<${Select} label="Environment" name="environment" options=${["production", "sandbox"]} />`}
    <${Checks} title="Scopes" names=${scopes} isChecked=${(scope) => key?.scopes?.includes(scope) ?? true} />
    <${MoneyFields} terms=${key}><${Amount} label="Total budget" name="budget_usd" value=${key?.budget_usd} /><//>
    <${RateFields} rates=${key?.limits} empty="no limit besides the account's" />
    <${Area} label="Models" name="models" rows="3" defaultValue=${key?.models?.join("\n") ?? ""}
      hint="One a line: ids, aliases, openai/*, provider:openai. Empty: all." />
    <${Area} label="Policies" name="policies" rows="3" defaultValue=${key?.policies?.join("\n") ?? ""}
      hint="One a line; calls must use one of them. Empty: any or none." />`;
}
