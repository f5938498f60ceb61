// The frame around the views: sign-in, navigation, and the account that is looked at.

import * as api from "./api.js";
import { ALL, Choice, Failure, Field, Form, Fragment, Here, View, html, render, routeOf, to } from "./lib.js";
import { useEffect, useErrorBoundary, useMemo, useRef, useState } from "./lib.js";
import { Overview } from "./views/overview.js";
import { Traces } from "./views/traces.js";
import { Trace } from "./views/trace.js";
import { Policies } from "./views/policies.js";
import { Accounts } from "./views/accounts.js";
import { Webhooks } from "./views/webhooks.js";
import { Models } from "./views/models.js";
import { Cache } from "./views/cache.js";
import { Try } from "./views/try.js";

const OneOrAllTraces = ({ parts }) => {
  const id = parts.join("/");
  return id ? html`<${Trace} id=${id} key=${id} />` : html`<${Traces} />`;
};

/** Title, component, the parameters that say `whose` data it shows, and whether it `coversAll` accounts. */
const VIEWS = {
  __proto__: null, // an address may have any word
  overview: ["Overview", Overview, { coversAll: true }],
  traces: ["Traces", OneOrAllTraces],
  policies: ["Policies", Policies, { whose: ["environment"] }],
  accounts: ["Accounts", Accounts, { whose: [] }],
  webhooks: ["Webhooks", Webhooks],
  models: ["Models", Models, { whose: [] }],
  cache: ["Cache", Cache],
  try: ["Try it", Try, { whose: [] }],
};
const optionsOf = ({ view }) => ({ whose: ["account", "environment"], ...VIEWS[view]?.[2] });
const NOTHING_KNOWN = { account: "default", environment: "production" }; // the views say why it cannot be read
const ENVIRONMENTS = [["production", "Production"], ["sandbox", "Sandbox"]];

function Navigation({ here, signOut }) {
  const { route, session, accounts, account, environment, scope } = here;
  const names = accounts.includes(account) ? accounts : [account, ...accounts];
  const { coversAll, whose } = optionsOf(route);
  const options = coversAll ? [[ALL, "All accounts"], ...names] : names;
  const nav = useRef();
  useEffect(() => { // on a narrow screen the links are one row that scrolls
    nav.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [route.view]);
  return html`<header class="bar">
    <a class="skip" href="#view" onClick=${skip}>Skip to the content</a>
    <a class="brand" href=${to("overview")}>routewright</a>
    <nav aria-label="Views" ref=${nav}>${Object.entries(VIEWS).map(([name, [title]]) =>
      html`<a href=${to(name)} aria-current=${route.view === name ? "page" : undefined}>${title}</a>`)}</nav>
    <div class="owner">
      ${whose.includes("account") && html`<${Choice} label="Account" name="account" value=${scope}
        options=${options} />`}
      ${whose.includes("environment") && html`<${Choice} label="Environment" name="environment" value=${environment}
        options=${ENVIRONMENTS} />`}
      <span class="operator">${session.operator}${!session.writes && " (read-only)"}</span>
      ${session.signs_out && html`<button type="button" class="quiet" onClick=${signOut}>Sign out</button>`}
    </div>
  </header>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("view").focus();
}

const SignIn = ({ onSignedIn, problem }) => html`<${View} title="Sign in">
  <p>Paste an operator's key. To make one:
    ${" "}<code>routewright keys create _system --name you --scope console:write</code></p>
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
    const hadSession = api.hasToken();
    begin().then(setSession, (error) => {
      setSession(null);
      if (error.status !== 401 || error.isLink || hadSession) setProblem(error);
    });
  }, []);
  const reloadAccounts = () => loadAccounts().then(setKnown, () => setKnown(known || NOTHING_KNOWN));
  useEffect(() => { if (session) reloadAccounts(); }, [session]);
  const here = useMemo(() => session && { route, session, reloadAccounts, ...chosen(route, known) },
    [route, session, known]);
  const signIn = (session) => { setProblem(null); setSession(session); };
  const signOut = async () => { await api.signOut(); setSession(null); };
  const isReady = known || optionsOf(route).whose.every((name) => route.params[name] && route.params[name] !== ALL);
  if (session === undefined || (session && !isReady)) return html`<p class="loading" role="status">Loading…</p>`;
  if (!session) return html`<${SignIn} problem=${problem} onSignedIn=${signIn} />`;
  return html`<${Here.Provider} value=${here}>
    <${Fragment}><${Navigation} here=${here} signOut=${signOut} /><${Content} route=${route} /><//><//>`;
}

/** What is looked at: as the address says, or as it is `known` to have most requests. In views that cover all accounts,
 * ALL is the `scope` unless the address names one. */
function chosen(route, known) {
  const { account, environment } = route.params;
  const { accounts = [], ...most } = known ?? NOTHING_KNOWN;
  const { coversAll, whose } = optionsOf(route);
  const one = !account || account === ALL ? most.account : account;
  const isAll = coversAll && (account === ALL || (!account && accounts.length > 1));
  const isUnknown = !isAll && whose.includes("account") && accounts.length > 0 && !accounts.includes(one);
  return { accounts, account: one, environment: environment || most.environment, scope: isAll ? ALL : one,
    unknown: isUnknown && one };
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

/** The accounts, and the environment and account with most requests of the last days, which are shown first: those in
 * production, if there are any. */
async function loadAccounts() {
  const usageOf = (environment) => api.read("traces.usage", { group_by: "account", environment });
  const [accounts, production, sandbox] = await Promise.all([
    api.read("console.accounts"), usageOf("production"), usageOf("sandbox")]);
  const isSandbox = !production.data.length && sandbox.data.length > 0;
  const requests = new Map(["default", ...accounts.map((account) => account.name)].map((name) => [name, 0]));
  const rows = (isSandbox ? sandbox : production).data;
  for (const row of rows) requests.set(row.group, requests.get(row.group) + row.requests);
  const [[account]] = [...requests].sort(([, one], [, other]) => other - one);
  return { accounts: [...requests.keys()], account, environment: isSandbox ? "sandbox" : "production" };
}

render(html`<${Page} />`, document.body);
