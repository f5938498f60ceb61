// Webhook endpoints of an account, and their deliveries of the last 24 hours.

import { Ask, Badge, Confirm, Field, Here, Loaded, NewSecret, Pairs, Section, Select, Table, Time } from "../lib.js";
import { View, count, html, ms, setParams, to, useContext, useOwner, useRead, useState } from "../lib.js";
import { Checks, runner } from "./terms.js";

const HOUR = 3600;
const OVERLAPS = [[0, "0"], [HOUR, "1 hour"], [24 * HOUR, "24 hours"], [7 * 24 * HOUR, "7 days"]];
const STATE_BADGES = { delivered: "good", rejected: "bad", failed_delivery: "bad", waiting: "warn" };
const PAGE = 50;
const words = (state) => state.replaceAll("_", " ");
const answerOf = ({ status, error, duration_ms }) => [status ?? error, ms(duration_ms)].join(", ");

export function Webhooks({ params }) {
  const { account } = useOwner();
  const endpoints = useRead("console.endpoints", { account }, { every: 15 });
  const views = (choices, all) => html`
    <${Endpoints} account=${account} all=${all} choices=${choices} onChange=${endpoints.reload} />
    <${Deliveries} account=${account} endpoints=${all} states=${choices.delivery_states} params=${params} />`;
  return html`<${View} title="Webhooks"><${Loaded} of=${useRead("page.choices")}>${(choices) =>
    html`<${Loaded} of=${endpoints}>${(all) => views(choices, all)}<//>`}<//><//>`;
}

function Endpoints({ account, all, choices, onChange }) {
  const { writes } = useContext(Here).session;
  const allEvents = choices.events.length;
  const columns = [
    { name: "Endpoint", kind: "wide", of: ({ url, id, created_at: at }) =>
      html`${url}<br /><small class="note">${id}, created <${Time} at=${at} /></small>` },
    { name: "State", of: stateOf },
    { name: "Events", kind: "wide", of: ({ events }) => (events.length < allEvents ? events.join(", ") : "all") },
    { name: "Environment", of: (row) => row.environment },
    { name: "Signature", of: (row) => row.profile },
    { name: "Actions", kind: "wide", changes: true, of: (row) =>
      html`<${Actions} row=${row} run=${runner({ account, endpoint_id: row.id }, onChange)} />` },
  ];
  return html`<${Section} title=${`Endpoints of ${account}`}
    actions=${html`<${Create} choices=${choices} run=${runner({ account }, onChange)} />`}>
    <${Table} caption="Endpoints" columns=${columns} rows=${all} keyOf=${(row) => row.id}
      empty=${writes ? "No endpoints. Create one to receive events, such as fallbacks, exceeded budgets and incidents."
        : "No endpoints."} /><//>`;
}

function stateOf({ disabled_at, old_secret_until }) {
  return html`<${Badge} kind=${disabled_at ? "bad" : "good"}>${disabled_at ? "disabled" : "enabled"}<//>
    ${disabled_at && html` <${Time} at=${disabled_at} />`}${old_secret_until * 1000 > Date.now() &&
      html`<div class="note">The old secret signs until <${Time} at=${old_secret_until} /></div>`}`;
}

function Create({ choices, run }) {
  const { environment } = useOwner();
  const eventsOf = (values) => choices.events.filter((event) => values[event]);
  const act = ({ url = "", profile, environment: chosen, ...values }) =>
    run("console.create_endpoint", { url, profile, environment: chosen, events: eventsOf(values) });
  return html`<${Ask} label="Create an endpoint" kind="primary" act=${act} result=${({ secret, endpoint }) =>
    html`<${NewSecret} text=${secret}>This secret signs deliveries to ${endpoint.url}.<//>`}>
    <${Field} label="URL" name="url" type="url" autocomplete="off" hint="https, on a public host." autofocus />
    <${Checks} title="Events" names=${choices.events} isChecked=${() => true} />
    <${Select} label="Environment" name="environment" value=${environment} options=${["production", "sandbox"]} />
    <${Select} label="Signature" name="profile" options=${choices.profiles}
      hint="standard: as in Standard Webhooks." /><//>`;
}

function Actions({ row: { url, disabled_at }, run }) {
  const [restarted, setRestarted] = useState(null);
  const outcomes = (answers) =>
    html`<${Pairs} rows=${Object.entries(answers).map(([event, attempt]) => [event, answerOf(attempt)])} />`;
  return html`<div class="actions">
    <${Ask} label="Test" title=${`Test ${url}`} act=${() => run("console.test_endpoint")} result=${outcomes}>
      <p>A signed sample of each of its events is sent once. Nothing is stored.</p><//>
    <${Confirm} label="Replay failed" kind="" act=${async () => setRestarted(await run("console.replay"))}
      text="All events of the last 24 hours that it has not accepted are delivered again, under the same ids." />
    <${Ask} label="Rotate the secret"
      act=${(values) => run("console.rotate_endpoint", { overlap_s: Number(values.overlap_s) })}
      result=${({ secret }) => html`<${NewSecret} text=${secret}>This is the new signing secret.<//>`}>
      <${Select} label="Keep the old secret for" name="overlap_s" value=${24 * HOUR} options=${OVERLAPS} /><//>
    ${disabled_at
      ? html`<${Confirm} label="Enable" kind="" text="New events are delivered again."
          act=${() => run("console.enable_endpoint")} />`
      : html`<${Confirm} label="Disable" text="Deliveries stop. Pending ones fail, and can be replayed for 24 hours."
          act=${() => run("console.disable_endpoint")} />`}
    <${Confirm} label="Delete" text=${`${url} and its deliveries are removed for good.`}
      act=${() => run("console.delete_endpoint")} />
    ${restarted !== null && html`<span role="status">Deliveries restarted: ${count(restarted)}</span>`}</div>`;
}

function Deliveries({ account, endpoints, states, params: { endpoint: id, state, after, ...params } }) {
  const endpoint = endpoints.find((one) => one.id === id)?.id; // it may be deleted, or of another account
  const filter = { account, endpoint_id: endpoint, state, after, limit: PAGE };
  const deliveries = useRead("console.deliveries", filter, { every: after ? 0 : 5 });
  const urls = Object.fromEntries(endpoints.map(({ id, url }) => [id, url]));
  const page = (place) => to("webhooks", { endpoint, state, ...params, after: place });
  const choose = (name) => (event) => setParams({ [name]: event.target.value, after: "" });
  const run = runner({ account }, deliveries.reload);
  const replay = ({ endpoint_id, event_id }) => run("console.replay", { endpoint_id, event_id });
  const columns = [
    { name: "Event", kind: "word", of: ({ event_type: type, event_id: id }) =>
      html`${type}<br /><small class="note">${id}</small>` },
    { name: "Endpoint", of: ({ endpoint_id: id }) => html`<span class="url" title=${urls[id]}>${urls[id]}</span>` },
    { name: "State", of: (row) => html`<${Badge} kind=${STATE_BADGES[row.state]}>${words(row.state)}<//>` },
    { name: "Attempts", kind: "wide", of: ({ attempts }) => (attempts.length ? html`<details>
      <summary>${attempts.length}: ${answerOf(attempts.at(-1))}</summary><${Pairs} rows=${attempts.map((attempt) =>
        [html`<${Time} at=${attempt.at} />`, answerOf(attempt)])} /></details>` : "none yet") },
    { name: "Next attempt", of: (row) => html`<${Time} at=${row.next_attempt_at} />` },
    { name: "Ended", of: (row) => html`<${Time} at=${row.ended_at} />` },
    { name: "Actions", changes: true, of: (row) => html`<${Confirm} label="Replay" title=${`Replay ${row.event_id}`}
      kind="" text="The event is delivered again, under the same id." act=${() => replay(row)} />` },
  ];
  return html`<${Section} title="Deliveries of the last 24 hours"><div class="fields">
    <${Select} label="Endpoint" value=${endpoint ?? ""} onChange=${choose("endpoint")}
      options=${[["", "All"], ...endpoints.map(({ id, url }) => [id, url])]} />
    <${Select} label="State" value=${state ?? ""} onChange=${choose("state")}
      options=${[["", "All"], ...states.map((name) => [name, words(name)])]} /></div>
    <${Loaded} of=${deliveries}>${(rows) => html`
      <${Table} caption="Deliveries" columns=${columns} rows=${rows} keyOf=${(row) => row.place} empty="None." />
      <nav class="actions" aria-label="Pages of deliveries">${after && html`<a href=${page("")}>Newest</a>`}
        ${rows.length === PAGE && html`<a href=${page(rows.at(-1).place)}>Older</a>`}</nav>`}<//><//>`;
}
