// The frame around the views: sign-in, navigation, and the account that is looked at.

import * as api from "./api.js";
import { ALL, Failure, Field, Form, Fragment, Here, Select, View, html, render, routeOf, setParams, to } from "./lib.js";
import { useEffect, useErrorBoundary, useMemo, useState } from "./lib.js";
import { Overview } from "./views/overview.js";
import { Traces } from "./views/traces.js";
import { Trace } from "./views/trace.js";
import { Policies } from "./views/policies.js";
import { Accounts } from "./views/accounts.js";
import { Webhooks } from "./views/webhooks.js";
import { Models } from "./views/models.js";
import { Cache } from "./views/cache.js";
import { Try } from "./views/try.js";

/** Name, component, and whether it `coversAll` accounts; `owner`: whose data it shows, of both unless it says. */
const VIEWS = {
  overview: ["Overview", Overview, { coversAll: true }],
  traces: ["Traces", ({ parts }) => (parts[0] ? html`<${Trace} id=${parts.join("/")} key=${parts.join("/")} />` : html`<${Traces} />`)],
  policies: ["Policies", Policies, { owner: ["environment"] }],
  accounts: ["Accounts", Accounts, { owner: [] }],
  webhooks: ["Webhooks", Webhooks],
  models: ["Models", Models, { owner: [] }],
  cache: ["Cache", Cache],
  try: ["Try it", Try, { owner: [] }],
};
const NO_ACCOUNTS = { accounts: [], account: "default" }; // when they cannot be read; the views say why
const ENVIRONMENTS = [["production", "Production"], ["sandbox", "Sandbox"]];

function Navigation({ here, signOut }) {
  const { route, session, accounts, account, scope } = here;
  const names = accounts.includes(account) ? accounts : [account, ...accounts];
  const { coversAll, owner = ["account", "environment"] } = VIEWS[route.view]?.[2] ?? {};
  const options = coversAll ? [[ALL, "All accounts"], ...names] : names;
  return html`<header class="bar">
    <a class="skip" href="#view" onClick=${skip}>Skip to the content</a>
    <a class="brand" href=${to("overview")}>routewright</a>
    <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]]) =>
      html`<a href=${to(name)} aria-current=${route.view === name ? "page" : undefined}>${title}</a>`)}</nav>
    <div class="owner">
      ${owner.includes("account") && html`<${Select} label="Account" value=${scope} options=${options}
        onChange=${(event) => setParams({ account: event.target.value })} />`}
      ${owner.includes("environment") && html`<${Select} label="Environment" value=${route.params.environment || "production"}
        options=${ENVIRONMENTS} onChange=${(event) => setParams({ environment: event.target.value })} />`}
      <span class="operator">${session.operator}${!session.writes && " (read only)"}</span>
      ${session.signs_out && html`<button type="button" class="quiet" onClick=${signOut}>Sign out</button>`}
    </div>
  </header>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

const SignIn = ({ onSignedIn, problem }) => html`<${View} title="Sign in">
  <p>Paste an operator's key. To make one: <code>routewright keys create _system --name you --scope console:write</code></p>
  ${problem && html`<${Failure} error=${problem} />`}
  <${Form} action="Sign in" onSubmit=${async ({ key }) => onSignedIn(await api.signIn({ key: key || "" }))}>
    <${Field} label="Key" name="key" type="password" autocomplete="off" spellcheck=${false} required autofocus />
  <//><//>`;

function Content({ route }) {
  const [error, reset] = useErrorBoundary();
  const key = JSON.stringify([route.view, route.parts[0]]);
  useEffect(reset, [key]);
  if (error) return html`<${View} title="This view failed"><${Failure} error=${error} /><//>`;
  const view = VIEWS[route.view];
  if (!view) return html`<${View} title="No such view"><p><a href=${to("overview")}>Go to the overview</a></p><//>`;
  return html`<${view[1]} parts=${route.parts} params=${route.params} key=${route.view} />`;
}

function Page() {
  const [session, setSession] = useState(undefined);
  const [problem, setProblem] = useState(null);
  const [route, setRoute] = useState(routeOf(location.hash));
  const [known, setKnown] = useState(null);
  useEffect(() => {
    addEventListener("hashchange", () => setRoute(routeOf(location.hash)));
    api.whenSignedOut((error) => setSession((session) => { if (session) setProblem(error); return null; }));
    begin().then(setSession, (error) => { setSession(null); if (error.status !== 401 || error.isLink) setProblem(error); });
  }, []);
  const reloadAccounts = () => loadAccounts().then(setKnown, () => setKnown(known || NO_ACCOUNTS));
  useEffect(() => { if (session) reloadAccounts(); }, [session]);
  const here = useMemo(() => session && known && {
    route, session, reloadAccounts, accounts: known.accounts, ...chosen(route, known),
  }, [route, session, known]);
  const signOut = async () => { await api.signOut(); setSession(null); };
  if (session === undefined || (session && !known)) return html`<p class="loading" role="status">Loading…</p>`;
  if (!session) return html`<${SignIn} problem=${problem} onSignedIn=${setSession} />`;
  return html`<${Here.Provider} value=${here}>
    <${Fragment}><${Navigation} here=${here} signOut=${signOut} /><${Content} route=${route} /><//><//>`;
}

/** The account that is looked at, and ALL as the `scope` in views that cover all accounts unless the address names one. */
function chosen({ view, params }, { accounts, account }) {
  const one = !params.account || params.account === ALL ? account : params.account;
  const isAll = VIEWS[view]?.[2]?.coversAll && (params.account === ALL || (!params.account && accounts.length > 1));
  return { account: one, scope: isAll ? ALL : one };
}

/** The session: of the one-time link that the address holds, or of the cookie. */
async function begin() {
  const link = /^#link=(.+)$/.exec(location.hash);
  if (!link) return api.session();
  history.replaceState(null, "", "#/");
  dispatchEvent(new HashChangeEvent("hashchange"));
  try {
    return await api.signIn({ link: link[1] });
  } catch (error) {
    error.isLink = true;
    return api.session().catch(() => { throw error; });
  }
}

/** The accounts, and the one with most requests of the last days, which is shown first. */
async function loadAccounts() {
  const [accounts, usage] = await Promise.all([api.read("console.accounts"), api.read("traces.usage", { group_by: "account" })]);
  const names = [...new Set(["default", ...accounts.map((account) => account.name)])];
  const requests = Object.fromEntries(names.map((name) => [name, 0]));
  for (const row of usage.data) requests[row.group] += row.requests;
  return { accounts: names, account: names.reduce((best, name) => (requests[name] > requests[best] ? name : best)) };
}

render(html`<${Page} />`, document.body);
