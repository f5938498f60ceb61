// What the views of accounts, keys and webhooks share: limits, with their fields, changes and figures.

import { change } from "../api.js";
import { Field, Meter, count, html, usd } from "../lib.js";

const RATES = [
  ["requests_per_min", "Requests per minute", "requests/min"],
  ["tokens_per_min", "Tokens per minute", "tokens/min"],
  ["concurrency", "Concurrent calls", "concurrent calls"],
];
/** Arguments for limits of money, their labels, and their names in stored terms. */
export const PERIODS = [
  ["daily_limit_usd", "Daily limit", "daily_usd"],
  ["weekly_limit_usd", "Weekly limit", "weekly_usd"],
  ["monthly_limit_usd", "Monthly limit", "monthly_usd"],
];

/** Runs operations with `terms` of their own beside those here, and then `reload()`. */
export const runner = (here, reload) => async (operation, terms) => {
  const result = await change(operation, { ...here, ...terms });
  reload();
  return result;
};

/** A field for a number. Empty: none. */
export const Amount = ({ value, ...rest }) =>
  html`<${Field} defaultValue=${value ?? ""} inputmode="decimal" autocomplete="off" ...${rest} />`;

/** Fields that belong together; `note` explains them. */
const Group = ({ title, note, children }) => html`<fieldset><legend>${title}</legend>
  ${note && html`<small class="note">${note}</small>`}<div class="fields">${children}</div></fieldset>`;

export const Checks = ({ names, isChecked, ...group }) => html`<${Group} ...${group}>
  ${names.map((name) =>
    html`<${Field} type="checkbox" label=${name} name=${name} defaultChecked=${isChecked(name)} />`)}<//>`;

export const RateFields = ({ rates, empty }) => html`<${Group} title="Rate limits" note=${`Empty: ${empty}.`}>
  ${RATES.map(([name, label]) => html`<${Amount} label=${label} name=${name} value=${rates?.[name]} />`)}<//>`;

const DAYS = "Days, weeks from Monday, and months are in UTC. Empty: no limit.";
export const MoneyFields = ({ terms, children }) => html`<${Group} title="Limits in US dollars" note=${DAYS}>${children}
  ${PERIODS.map(([name, label, key]) => html`<${Amount} label=${label} name=${name} value=${terms?.[key]} />`)}<//>`;

/** Rate limits as an operation takes them. None: null. */
export function ratesOf(source) {
  const rates = Object.fromEntries(RATES.map(([name]) => [name, source?.[name] ?? null]));
  return Object.values(rates).some((rate) => rate !== null) ? rates : null;
}

/** Limits of money as operations name them: what a form holds, and what is stored. */
export const periodsOf = (values) => Object.fromEntries(PERIODS.map(([name]) => [name, values[name] ?? null]));
export const periodsIn = (terms) => Object.fromEntries(PERIODS.map(([name, , field]) => [name, terms[field]]));

/** The terms that differ, so that a change of others by somebody else is kept. */
export const changesOf = (before, after) => Object.fromEntries(
  Object.entries(after).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])));

/** Rate limits in words. */
export const inWords = (rates, none) => RATES.filter(([name]) => rates?.[name] != null)
  .map(([name, , unit]) => `${count(rates[name])} ${unit}`).join(", ") || none;

/** What was spent of a limit. `purse` may be missing: there is no limit. */
export const Spent = ({ name, label, purse }) => (purse ? html`<div>
  ${label && html`<small class="note">${label}</small>`}
  <${Meter} name=${name ?? label} used=${purse.spent_usd} limit=${purse.limit_usd} />
  ${purse.reserved_usd > 0 && html`<small class="note">${usd(purse.reserved_usd)} reserved</small>`}</div>` : "–");
