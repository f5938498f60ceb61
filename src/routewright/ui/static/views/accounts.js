// Accounts with their limits and what they spent, and the keys of operators.

import { change } from "../api.js";
import { Ask, Field, Here, Loaded, Section, Table, View, go, html, setParams, to, usd } from "../lib.js";
import { useContext, useRead } from "../lib.js";
import { Account, AccountFields, accountTerms } from "./account.js";
import { Keys, OPERATORS } from "./keys.js";
import { Spent, inWords } from "./terms.js";

export const Accounts = ({ parts: [name], params }) => (name === undefined
  ? html`<${List} params=${params} />`
  : html`<${Account} name=${name} params=${params} key=${name} />`);

const COLUMNS = [
  { name: "Account", kind: "wide", of: ({ account: { name: id } }) => html`<a href=${to(["accounts", id])}>${id}</a>` },
  { name: "Plan", kind: "word", of: ({ account }) => account.plan },
  { name: "Rate limits", of: ({ account }) => inWords(account.limits_in_force, "none") },
  { name: "Balance", kind: "number", of: ({ balance }) => (balance ? usd(balance.left_usd) : "not prepaid") },
  { name: "Today", of: ({ day }) => html`<${Spent} name="Today" purse=${day} />` },
  { name: "This week", of: ({ week }) => html`<${Spent} name="This week" purse=${week} />` },
  { name: "This month", of: ({ month }) => html`<${Spent} name="This month" purse=${month} />` },
];

function List({ params: { contains, start, ...params } }) {
  const { reloadAccounts, session: { writes } } = useContext(Here);
  const first = Number(start ?? 0);
  const page = useRead("page.accounts", { contains, start: first }, { every: 30 });
  const create = async ({ name = "", ...values }) => {
    await change("console.create_account", { name, ...accountTerms(values) });
    reloadAccounts();
    go(["accounts", name]);
  };
  const actions = html`<${Ask} label="Create an account" kind="primary" act=${create}><${AccountFields} /><//>`;
  const none = html`No accounts. ${writes ? "Create one here, or run" : "To create one, run"}
    ${" "}<code>routewright accounts create acme --plan pro</code>.
    ${" "}Calls that name no account are of default, which has no limits.`;
  const at = (row) => to("accounts", { contains, start: row || "", ...params });
  return html`<${View} title="Accounts" actions=${actions}>
    <${Section} title="All accounts">
      <${Field} label="Name contains" type="search" value=${contains ?? ""}
        onInput=${(event) => setParams({ contains: event.target.value, start: "" }, { replace: true })} />
      <${Loaded} of=${page}>${({ rows, count, size }) => html`
        <${Table} caption="Accounts" columns=${COLUMNS} rows=${rows} keyOf=${({ account }) => account.name}
          empty=${contains ? "No account has such a name." : none} />
        ${count > size && html`<nav class="actions" aria-label="Pages of accounts">
          <span>${first + 1} to ${first + rows.length} of ${count}</span>
          ${first > 0 && html`<a href=${at(Math.max(0, first - size))}>Previous</a>`}
          ${first + rows.length < count && html`<a href=${at(first + size)}>Next</a>`}</nav>`}`}<//><//>
    <${Keys} account=${OPERATORS} params=${params} title="Operators" />
  <//>`;
}
