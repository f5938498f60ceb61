// One account: what it spent of its limits, its terms, credit, limits of tags, and keys.

import { Ask, Confirm, Field, Figure, Loaded, Section, Select, Table, Time, View } from "../lib.js";
import { count, html, to, usd, useRead, useRef } from "../lib.js";
import { Keys } from "./keys.js";
import { Amount, MoneyFields, PERIODS, RateFields, Spent } from "./terms.js";
import { changesOf, inWords, periodsIn, periodsOf, ratesOf, runner } from "./terms.js";

export function Account({ name, params }) {
  const standing = useRead("console.standing", { account: name }, { every: 15 });
  const run = runner({}, standing.reload);
  const save = (terms) => run("console.change_account", { name, ...terms });
  const links = html`<a href=${to("accounts")}>All accounts</a> <a href=${to("traces", { account: name })}>Traces</a>
    <a href=${to("webhooks", { account: name })}>Webhooks</a>`;
  return html`<${View} title=${name} actions=${links}><${Loaded} of=${standing}>${({ account, ...purses }) => html`
    <${Money} account=${name} run=${run} ...${purses} />
    <${Terms} account=${account} save=${save} />
    <${TagLimits} account=${account} save=${save} />
    <${Keys} account=${name} standings=${purses.keys} params=${params} title="Keys" onChange=${standing.reload} />`}
  <//><//>`;
}

function Money({ account, run, balance, day, week, month }) {
  const spent = (name, purse) => html`<${Figure} name=${name} value=${usd(purse?.spent_usd)}
    note=${purse ? html`<${Spent} name=${name} purse=${purse} />` : "counted once there is a limit"} />`;
  const credit = html`<${AddCredit} account=${account} run=${run} />`;
  return html`<${Section} title="Money" actions=${credit}><dl class="figures">
    <${Figure} name="Balance" value=${usd(balance?.left_usd)} kind=${balance?.left_usd <= 0 ? "bad" : ""}
      note=${balance ? `prepaid, ${usd(balance.reserved_usd)} reserved` : "not prepaid"} />
    ${spent("Today", day)}${spent("This week", week)}${spent("This month", month)}</dl><//>`;
}

const newId = () => `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;

function AddCredit({ account, run }) {
  const ownId = useRef(newId()); // sent again after its answer was lost, a credit is not added twice
  const add = async ({ usd: amount = null, note = "", id = ownId.current }) => {
    const credit = await run("console.credit", { account, usd: amount, note, id });
    ownId.current = newId();
    return credit;
  };
  const result = ({ id, usd: amount, created, balance_usd }) => html`<p role="status">
    ${created ? `${usd(amount)} added.` : `The credit ${id} was there already; nothing was added.`}
    ${balance_usd === null ? " It counts once the account is prepaid." : ` The balance is ${usd(balance_usd)}.`}</p>`;
  return html`<${Ask} label="Add credit" act=${add} result=${result}>
    <${Amount} label="Amount in US dollars" name="usd" hint="A negative amount is withdrawn." autofocus />
    <${Field} label="Note" name="note" autocomplete="off" />
    <${Field} label="Id" name="id" autocomplete="off"
      hint="Such as an invoice number. A credit with the same id is added once." /><//>`;
}

function Terms({ account, save }) {
  const { plan, prepaid, limits, limits_in_force: rates } = account;
  const before = { plan, prepaid, limits: ratesOf(limits), ...periodsIn(account) };
  const limit = (value) => (value === null ? "no limit" : count(value));
  const edit = html`<${Ask} label="Change terms" act=${(values) => save(changesOf(before, accountTerms(values)))}>
    <${AccountFields} account=${account} /><//>`;
  return html`<${Section} title="Terms" actions=${edit}><dl class="figures">
    <${Figure} name="Plan" value=${plan} />
    <${Figure} name="Requests per minute" value=${limit(rates.requests_per_min)} />
    <${Figure} name="Tokens per minute" value=${limit(rates.tokens_per_min)} />
    <${Figure} name="Concurrent calls" value=${limit(rates.concurrency)} />
    <${Figure} name="Created" value=${html`<${Time} at=${account.created_at} />`} /></dl><//>`;
}

/** The terms of an account, of what a form holds. */
export const accountTerms = (values) =>
  ({ plan: values.plan, prepaid: values.prepaid, limits: ratesOf(values), ...periodsOf(values) });

/** The fields of an account's terms, and of its name if it is new. */
export function AccountFields({ account }) {
  const described = ([plan, rates]) => [plan, `${plan}: ${inWords(rates, "no rate limits but those below")}`];
  return html`<${Loaded} of=${useRead("page.choices")}>${({ plans }) => html`
    ${!account && html`<${Field} label="Name" name="name" autocomplete="off" autofocus
      hint="Accounts cannot be renamed or deleted." />`}
    <${Select} label="Plan" name="plan" value=${account?.plan} options=${Object.entries(plans).map(described)} />
    <${Field} type="checkbox" label="Prepaid: the balance pays" name="prepaid" defaultChecked=${account?.prepaid} />
    <${MoneyFields} terms=${account} /><${RateFields} rates=${account?.limits} empty="the plan's" />`}<//>`;
}

function TagLimits({ account, save }) {
  const limits = account.tag_limits;
  const own = ({ key = "", value = null }, periods) => ({ key, value, ...periods });
  const replace = (old, ...limit) => save({
    tag_limits: [...limits.filter((other) => other !== old).map((other) => own(other, periodsIn(other))), ...limit],
  });
  const tag = ({ key, value }) => `${key} = ${value ?? "any value"}`;
  const columns = [
    { name: "Metadata", kind: "wide", of: tag },
    ...PERIODS.map(([, label, field]) => ({ name: label, kind: "number", of: (limit) => usd(limit[field]) })),
    { name: "Spent", kind: "wide", of: (limit) =>
      html`<${TagSpent} account=${account.name} limit=${limit} key=${JSON.stringify(limit)} />` },
    { name: "Actions", changes: true, of: (limit) => html`<div class="actions">
      <${Ask} label="Change" title=${`Change the limits of ${tag(limit)}`}
        act=${(values) => replace(limit, own(limit, periodsOf(values)))}><${MoneyFields} terms=${limit} /><//>
      <${Confirm} label="Remove" title=${`Remove the limits of ${tag(limit)}`} act=${() => replace(limit)}
        text="Such requests are then limited by the account and the key only." /></div>` },
  ];
  const add = html`<${Ask} label="Add a tag limit" act=${(values) => replace(null, own(values, periodsOf(values)))}>
    <${Field} label="Metadata key" name="key" autocomplete="off" autofocus />
    <${Field} label="Value" name="value" autocomplete="off" hint="Empty: each value has these limits for itself." />
    <${MoneyFields} /><//>`;
  return html`<${Section} title="Tag limits" actions=${add}><${Table} caption="Tag limits" columns=${columns}
    rows=${limits} keyOf=${tag} empty="No limits by metadata, such as team = search." /><//>`;
}

function TagSpent({ account, limit: { key, value } }) {
  const standing = useRead("console.standing", { account, tags: { [key]: value } }, { skip: value === null });
  if (value === null) return "–";
  return html`<${Loaded} of=${standing}>${({ tags }) => tags.map((purse) =>
    html`<${Spent} label=${purse.period} purse=${purse} />`)}<//>`;
}
