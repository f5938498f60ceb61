// Policies: the list, and one policy with what serves, its versions, and the ways to publish and go back.

import { change } from "../api.js";
import { Ask, Badge, Confirm, Empty, Failure, Field, Figure, Here, Loaded, Section, Select } from "../lib.js";
import { Table, Time, View, go, html, percent, to, useContext, useRead, useState } from "../lib.js";
import { Button, Draft, Editor, Rules } from "./draft.js";
import { Comparison, Simulation } from "./simulation.js";

const TABS = { draft: "Draft", simulate: "Simulate", versions: "Versions", compare: "Compare" };
const SOON = "Running processes follow within five seconds; requests that have begun keep their version.";

export function Policies({ parts, params }) {
  const { writes } = useContext(Here).session;
  const name = parts.join("/");
  if (name) return html`<${Policy} key=${name} name=${name} params=${params} />`;
  if (!params.new || !writes) return html`<${List} writes=${writes} />`;
  return html`<${View} title="New policy"><${Editor} start=${{ name: "", goal: "cost" }} cancel=${() => go("policies")}
    onSaved=${(record) => go(["policies", record.name])} /><//>`;
}

const by = (person) => person && ` by ${person}`;
const shareOf = ({ share }) => `${percent(share.fraction)} by ${share.by}`;

const COLUMNS = [
  { name: "Policy", of: ({ record: { name } }) => html`<a href=${to(["policies", name])}>${name}</a>` },
  { name: "In force", of: ({ version }) => version?.label ?? "nothing" },
  { name: "Share", of: ({ record, shared }) => shared && `${shared.label}: ${shareOf(record)}` },
  { name: "Draft", of: ({ record }) =>
    record.drafted_at && html`<${Time} at=${record.drafted_at} />${by(record.drafted_by)}` },
  { name: "Owner", of: ({ record }) => record.owner },
  { name: "Changed", of: ({ record }) => html`<${Time} at=${record.changed_at} />${by(record.changed_by)}` },
  { name: "Note", of: ({ record }) => record.note },
];

function List({ writes }) {
  const states = useRead("policies.states");
  const add = writes && html`<${Button} kind="primary" onClick=${() => go("policies", { new: 1 })}>New policy<//>`;
  return html`<${View} title="Policies" actions=${add}><${Loaded} of=${states}>${(rows) => html`<${Table}
    caption="Policies" rows=${rows} columns=${COLUMNS} keyOf=${({ record }) => record.name}
    empty=${html`No policy is stored.
    ${writes ? " Write one here, or with " : " To write one: "}<code>routewright policies draft FILE</code>.
    ${" "}Policies of a file or of code are listed once their Router has started.`} />`}<//><//>`;
}

function Policy({ name, params }) {
  const states = useRead("policies.states");
  const versions = useRead("policies.versions", { name });
  const [outcome, setOutcome] = useState(null);
  const reload = () => { states.reload(); versions.reload(); };
  const actOn = (expect) => async (operation, args, text) => {
    try {
      const result = await change(operation, { name, expect, ...args });
      setOutcome(html`<p role="status">${text(result)}</p>`);
    } catch (error) {
      if (error.status !== 412) throw error; // else show what it is now, in place of the dialog
      setOutcome(html`<${Failure} error=${error} />`);
    }
    reload();
  };
  const tab = TABS[params.tab] ? params.tab : "draft";
  const content = (state, known) => {
    const parts = { state, versions: known, params, act: actOn(state.record), reload };
    return html`<${Summary} state=${state} />${outcome}<${Actions} ...${parts} />
      <nav class="tabs" aria-label="Parts of the policy">${Object.entries(TABS).map(([key, title]) =>
        html`<a href=${to(["policies", name], { tab: key })}
          aria-current=${key === tab ? "page" : undefined}>${title}</a>`)}</nav>
      <${{ draft: Draft, simulate: Simulation, versions: Versions, compare: Comparison }[tab]} ...${parts} />`;
  };
  return html`<${View} title=${name}><${Loaded} of=${states}>${(all) => html`<${Loaded} of=${versions}>${(known) => {
    const state = all.find(({ record }) => record.name === name);
    return state ? content(state, known)
      : html`<${Empty}>There is no policy of this name. <a href=${to("policies")}>See all policies</a><//>`;
  }}<//>`}<//><//>`;
}

const Summary = ({ state: { record, version, shared } }) => html`<dl class="figures">
  <${Figure} name="In force" value=${version?.label ?? "nothing"} note=${html`<${Time} at=${record.changed_at} />
    ${by(record.changed_by)}${record.note && `: ${record.note}`}`} />
  ${shared && html`<${Figure} name="Share" value=${shared.label} note=${shareOf(record)} />`}
  <${Figure} name="Draft" value=${record.drafted_at ? `by ${record.drafted_by || "somebody"}` : "none"}
    note=${record.drafted_at && html`<${Time} at=${record.drafted_at} />`} />
  <${Figure} name="Owner" value=${record.owner} note=${record.owner !== "storage" && `It publishes this policy:
    change it there, or free the name with Retire. A draft here can be simulated, not published.`} />
</dl>`;

/** What can be done to what is in force. */
function Actions({ state: { record, version, shared }, versions, act }) {
  const isOurs = record.owner === "storage";
  const known = versions.filter(({ content, policy }) => policy && content !== record.content);
  const draft = `The draft of ${record.drafted_by || "somebody"}`;
  const retiring = `Requests that name ${record.name} will be refused${isOurs ? "" : `,
    unless ${record.owner} claims the name again`}. Its versions and traces stay, and Roll back takes this back.`;
  return html`<div class="actions">
    ${isOurs && shared && html`
      <${Publication} label="Complete the share" act=${act} text="${shared.label} will serve all of the traffic." />
      <${Publication} label="Change the share" act=${act} share=${record.share}
        text="The part of the traffic that ${shared.label} serves. Whoever has it keeps it in a larger share." />
      <${Confirm} label="End the share" text="${version?.label} will serve all of the traffic again. ${SOON}"
        act=${() => act("policies.roll_back", {}, ({ label }) => `${label} serves all of the traffic again.`)} />`}
    ${isOurs && !shared && record.draft && html`
      <${Publication} label="Publish" kind="primary" act=${act} text="${draft} will serve all of the traffic." />
      ${version && html`<${Publication} label="Publish to a share" act=${act} share=${{ by: "account" }}
        text="${draft} will serve a part of the traffic beside ${version.label}." />`}`}
    ${isOurs && !shared && known.length > 0 && html`<${RollBack} record=${record} versions=${known} act=${act} />`}
    ${version && html`<${Confirm} label="Retire" text=${retiring}
      act=${() => act("policies.retire", {}, () => `${record.name} is retired.`)} />`}
  </div>`;
}

/** Publishes a draft or a share's version: to all, or to a `share`. */
function Publication({ label, kind, text, act, share }) {
  const publish = ({ note, part, share_by }) => (share
    // a share that is not set would be refused as "", but publish to all as undefined
    ? act("policies.publish", { note, share_by, share: typeof part === "number" ? part / 100 : part ?? "" },
      (version) => `${version.label} serves ${part} % of the traffic.`)
    : act("policies.publish", { note }, (version) => `${version.label} serves all of the traffic.`));
  return html`<${Ask} label=${label} kind=${kind} act=${publish}><p>${text} ${SOON}</p>
    ${share && html`<${Field} label="Share in percent" name="part" inputmode="decimal" autocomplete="off"
        defaultValue=${share.fraction && share.fraction * 100} />
      <${Field} label="Who gets the same version" name="share_by" defaultValue=${share.by} autocomplete="off"
        hint="account, or metadata.KEY: requests with the same value get the same version" />`}
    <${Field} label="Note" name="note" autocomplete="off" hint="The reason. It stays with the version." /><//>`;
}

function RollBack({ record, versions, act }) {
  const options = versions.map(({ label, note }) => [label, note ? `${label}: ${note}` : label]);
  const before = versions.find(({ content }) => content === record.previous.at(-1));
  const run = (values) => act("policies.roll_back", values, ({ label }) => `${label} serves all of the traffic.`);
  return html`<${Ask} label="Roll back" kind="danger" act=${run}>
    <p>The version will serve all of the traffic. ${SOON} A draft stays.</p>
    <${Select} label="Version" name="to" options=${options} value=${before?.label} /><//>`;
}

function Versions({ state: { record, version, shared }, versions, params }) {
  const text = versions.find(({ label }) => label === params.version);
  const addressOf = (label) => to(["policies", record.name], { tab: "versions", version: label });
  const badgeOf = (content) => (content === version?.content ? html`<${Badge} kind="good">in force<//>`
    : content === shared?.content && html`<${Badge} kind="warn">${shareOf(record)}<//>`);
  return html`<${Section} title="Versions"><${Table} caption="Versions" rows=${versions} columns=${[
    { name: "Version", of: ({ label }) => html`<a href=${addressOf(label)}>${label}</a>` },
    { name: "State", of: ({ content }) => badgeOf(content) },
    { name: "Created", of: (row) => html`<${Time} at=${row.created_at} />${by(row.by)}` },
    { name: "Note", of: ({ note }) => note },
  ]} empty="Nothing was published under this name. Publish a draft." /><//>
  ${text && html`<${Section} title=${text.label}>${text.policy
    ? html`<${Rules} label=${text.label} policy=${text.policy} />`
    : html`<${Empty}>Published before texts were stored.<//>`}<//>`}`;
}
