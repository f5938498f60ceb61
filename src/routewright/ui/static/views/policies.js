// Policies: the list, and one policy with what serves, its versions, and the ways to publish and go back.

import { change } from "../api.js";
import { Badge, Confirm, Empty, Failure, Field, Figure, Form, Here, Loaded, Opens, Section, Select, Table, Time, View } from "../lib.js";
import { go, html, percent, setParams, to, useContext, useRead, useState } from "../lib.js";
import { Draft, Editor, textOf } from "./draft.js";
import { Comparison, Simulation } from "./simulation.js";
import { Text } from "./trace.js";

const TABS = { draft: "Draft", simulate: "Simulate", versions: "Versions", compare: "Compare" };
const SOON = "Running processes follow within five seconds; requests that have begun keep their version.";

export function Policies({ parts, params }) {
  const { writes } = useContext(Here).session;
  const name = parts.join("/");
  if (name) return html`<${Policy} key=${name} name=${name} params=${params} />`;
  return params.new && writes ? html`<${NewPolicy} />` : html`<${List} writes=${writes} />`;
}

function List({ writes }) {
  const states = useRead("policy-states");
  const add = writes && html`<button type="button" class="primary" onClick=${() => go("policies", { new: 1 })}>New policy</button>`;
  return html`<${View} title="Policies" actions=${add}><${Loaded} of=${states}>${(rows) => html`<${Table} caption="Policies"
    rows=${rows} keyOf=${({ record }) => record.name} columns=${[
      { name: "Policy", of: ({ record }) => html`<a href=${to(["policies", record.name])}>${record.name}</a>` },
      { name: "In force", of: ({ version }) => version?.label ?? "nothing" },
      { name: "Share", of: ({ record, shared }) => shared && `${shared.label}: ${shareOf(record)}` },
      { name: "Draft", of: ({ record }) => html`<${Drafted} record=${record} />` },
      { name: "Owner", of: ({ record }) => record.owner },
      { name: "Changed", of: ({ record }) => html`<${Time} at=${record.changed_at} /> ${by(record.changed_by)}` },
      { name: "Note", of: ({ record }) => record.note },
    ]} empty=${html`No policy is stored. Make one here, or with <code>routewright policies draft FILE</code>. Policies of a
      file or of code are listed once their Router has started.`} />`}<//><//>`;
}

const by = (person) => person && `by ${person}`;
const shareOf = ({ share }) => `${percent(share.fraction)} by ${share.by}`;
const Drafted = ({ record }) => record.drafted_at && html`<${Time} at=${record.drafted_at} /> ${by(record.drafted_by)}`;

const NewPolicy = () => html`<${View} title="New policy"><${Editor} slot="" record=${null} start=${{ name: "", goal: "cost" }}
  onSaved=${(record) => go(["policies", record.name])} cancel=${() => go("policies")} /><//>`;

function Policy({ name, params }) {
  const states = useRead("policy-states");
  const versions = useRead("policy-versions", { name });
  const [outcome, setOutcome] = useState(null);
  const reload = () => { states.reload(); versions.reload(); };
  const tab = TABS[params.tab] ? params.tab : "draft";
  return html`<${View} title=${name}><${Loaded} of=${states}>${(all) => {
    const state = all.find(({ record }) => record.name === name);
    if (!state) return html`<${Empty}>There is no policy of this name. <a href=${to("policies")}>See all policies</a><//>`;
    const act = async (operation, args, text) => {
      try {
        setOutcome(html`<p class="outcome" role="status">${text(await change(operation, { name, expect: state.record, ...args }))}</p>`);
      } catch (error) {
        if (error.status !== 412) throw error; // else show what it is now, in place of the dialog
        setOutcome(html`<${Failure} error=${error} />`);
      }
      reload();
    };
    return html`<${Loaded} of=${versions}>${(known) => html`
      <${Summary} state=${state} />
      ${outcome}
      <${Actions} state=${state} versions=${known} act=${act} />
      <nav class="tabs" aria-label="Parts of the policy">${Object.entries(TABS).map(([key, title]) => html`<a
        href=${to(["policies", name], { tab: key })} aria-current=${key === tab ? "page" : undefined}>${title}</a>`)}</nav>
      ${tab === "draft" && html`<${Draft} state=${state} versions=${known} params=${params} act=${act} reload=${reload} />`}
      ${tab === "simulate" && html`<${Simulation} state=${state} versions=${known} params=${params} />`}
      ${tab === "versions" && html`<${Versions} state=${state} versions=${known} shown=${params.version} />`}
      ${tab === "compare" && html`<${Comparison} name=${name} since=${params.since} />`}`}<//>`;
  }}<//><//>`;
}

const Summary = ({ state: { record, version, shared } }) => html`<dl class="figures">
  <${Figure} name="In force" value=${version?.label ?? "nothing"} note=${html`<${Time} at=${record.changed_at} />
    ${record.changed_by && ` by ${record.changed_by}`}${record.note && `: ${record.note}`}`} />
  ${shared && html`<${Figure} name="Share" value=${shared.label} note=${shareOf(record)} />`}
  <${Figure} name="Draft" value=${record.drafted_at ? `by ${record.drafted_by || "somebody"}` : "none"}
    note=${record.drafted_at && html`<${Time} at=${record.drafted_at} />`} />
  <${Figure} name="Owner" value=${record.owner} note=${record.owner !== "storage" && html`It publishes this policy: change it
    there, or free the name with Retire. A draft here can be simulated, not published.`} />
</dl>`;

/** What can be done to what is in force. */
function Actions({ state: { record, version, shared }, versions, act }) {
  const isOurs = record.owner === "storage";
  const known = versions.filter(({ content, policy }) => policy && content !== record.content);
  return html`<div class="actions">
    ${isOurs && shared && html`
      <${Publication} label="Complete the share" act=${act} share=${null}>${shared.label} will serve all of the traffic.<//>
      <${Publication} label="Change the share" act=${act} share=${record.share}>The part of the traffic that ${shared.label}
        serves. A larger part keeps those who have it.<//>
      <${Confirm} label="End the share" text=${`${version?.label} will serve all of the traffic again. ${SOON}`}
        act=${() => act("policy-roll-back", {}, (after) => `${after.label} serves all of the traffic again.`)} />`}
    ${isOurs && !shared && record.draft && html`
      <${Publication} label="Publish" kind="primary" act=${act} share=${null}>The draft of ${record.drafted_by || "somebody"}
        will serve all of the traffic.<//>
      ${version && html`<${Publication} label="Publish to a share" act=${act} share=${{ by: "account" }}>The draft of
        ${" "}${record.drafted_by || "somebody"} will serve a part of the traffic beside ${version.label}.<//>`}`}
    ${isOurs && !shared && known.length > 0 && html`<${RollBack} record=${record} versions=${known} act=${act} />`}
    ${version && html`<${Confirm} label="Retire" text=${`Requests that name ${record.name} will be refused${isOurs ? "" :
      `, unless ${record.owner} claims the name again`}. Its versions and traces stay, and Roll back takes this back.`}
      act=${() => act("policy-retire", {}, () => `${record.name} is retired.`)} />`}
  </div>`;
}

/** Publishes a draft or a share's version: to all, or to a `share`. */
function Publication({ label, kind, act, share, children }) {
  const publish = async ({ note, part, share_by }) => act("policy-publish", share
    ? { note, share: fractionOf(part), share_by }
    : { note }, ({ label: version }) => `${version} serves ${share ? `${part} % of` : "all of"} the traffic.`);
  return html`<${Opens} label=${label} kind=${kind}>${(close) => html`<p>${children} ${SOON}</p>
    <${Form} action=${label} cancel=${close} onSubmit=${async (values) => { await publish(values); close(); }}>
      ${share && html`<${Field} label="Share in percent" name="part" inputmode="decimal" autocomplete="off"
          defaultValue=${share.fraction && share.fraction * 100} />
        <${Field} label="Who gets the same version" name="share_by" defaultValue=${share.by} autocomplete="off"
          hint="account, or metadata.KEY: requests with the same value get the same version" />`}
      <${Field} label="Note" name="note" autocomplete="off" hint="The reason. It stays with the version." />
    <//>`}<//>`;
}

/** A share as the API takes it, or what it refuses, since without one it publishes to all. */
const fractionOf = (part) => (typeof part === "number" ? part / 100 : part ?? "");

const RollBack = ({ record, versions, act }) => html`<${Opens} label="Roll back" kind="danger">${(close) => html`
  <p>The version will serve all of the traffic. ${SOON} A draft stays.</p>
  <${Form} action="Roll back" kind="danger" cancel=${close} onSubmit=${async ({ to: label }) => {
    await act("policy-roll-back", { to: label }, (after) => `${after.label} serves all of the traffic.`);
    close();
  }}><${Select} label="Version" name="to" options=${versions.map(({ label, note }) => [label, note ? `${label}: ${note}` : label])}
    value=${versions.find(({ content }) => content === record.previous.at(-1))?.label} /><//>`}<//>`;

function Versions({ state: { record, version, shared }, versions, shown }) {
  const { writes } = useContext(Here).session;
  const text = versions.find(({ label }) => label === shown);
  return html`<${Section} title="Versions"><${Table} caption="Versions" rows=${versions} keyOf=${({ content }) => content} columns=${[
    { name: "Version", of: ({ label }) => html`<a href=${to(["policies", record.name], { tab: "versions", version: label })}>${label}</a>` },
    { name: "State", of: ({ content }) => (content === version?.content ? html`<${Badge} kind="good">in force<//>`
      : content === shared?.content && html`<${Badge} kind="warn">${shareOf(record)}<//>`) },
    { name: "Created", of: ({ created_at }) => html`<${Time} at=${created_at} />` },
    { name: "By", of: (row) => row.by },
    { name: "Note", of: ({ note }) => note },
  ]} empty="Nothing was published under this name. Publish a draft." /><//>
  ${text && html`<${Section} title=${text.label} actions=${writes && text.policy && html`<button type="button" onClick=${() => setParams(
    { tab: "draft", edit: 1, from: text.label, version: "" })}>Draft from it</button>`}>
    ${text.policy ? html`<${Text} label=${text.label}>${textOf(text.policy)}<//>`
      : html`<${Empty}>Published before texts were stored.<//>`}<//>`}`;
}
