// The draft of a policy: what it changes, whether its models are known, and editing it.

import { change, read } from "../api.js";
import { Area, Choice, Confirm, Empty, Failure, Form, Here, Loaded, Section, Table, Time, count } from "../lib.js";
import { html, setParams, useContext, useRead, useState } from "../lib.js";
import { Text } from "./trace.js";

/** A policy as people write it. */
const jsonOf = (policy) => JSON.stringify({ name: policy.name, ...policy }, null, 2);

/** The policy of a text. Not every fault comes with its place: the shortest beginning that has it ends there. */
function policyOf(text) {
  const faultOf = (end) => {
    try { JSON.parse(text.slice(0, end)); return ""; } catch ({ message }) { return message; }
  };
  const fault = faultOf(text.length);
  if (!fault) return JSON.parse(text);
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (faultOf(middle + 1).startsWith("Unexpected token")) high = middle;
    else low = middle + 1;
  }
  const lines = text.slice(0, low).split("\n");
  const [, line, place] = /line (\d+) column (\d+)/.exec(fault) ?? ["", lines.length, lines.at(-1).length + 1];
  throw new Error(`this is not valid JSON; check line ${line}, column ${place}`);
}

export const Rules = ({ label, policy }) => html`<${Text} label=${label}>${jsonOf(policy)}<//>`;

export const Button = ({ kind, onClick, children }) =>
  html`<button type="button" class=${kind} onClick=${onClick}>${children}</button>`;

export function Draft({ state: { record, version }, versions, params, act, reload }) {
  const { writes } = useContext(Here).session;
  if (writes && params.edit) {
    const start = record.draft ?? version?.policy ?? { name: record.name };
    const done = () => { setParams({ edit: "" }); reload(); };
    return html`<${Editor} record=${record} start=${start} onSaved=${done} onConflict=${reload} cancel=${done} />`;
  }
  const edit = writes && html`<${Button} kind=${record.draft ? "" : "primary"} onClick=${() => setParams({ edit: 1 })}>
    ${record.draft ? "Edit" : "Write a draft"}<//>`;
  if (!record.draft) {
    return html`<${Section} title="Draft" actions=${edit}><${Empty}>${record.drafted_at
      ? "A later version of routewright wrote this draft. Upgrade this server to read it."
      : "No draft. A draft serves nobody until it is published."}<//>
      ${version?.policy && html`<p>In force, ${version.label}:</p>
        <${Rules} label=${version.label} policy=${version.policy} />`}<//>`;
  }
  const discard = html`<${Confirm} label="Discard" text="The draft will be removed. What is published stays."
    act=${() => act("policies.discard", {}, () => "The draft is removed.")} />`;
  return html`<${Section} title="Draft" actions=${html`${edit}${discard}`}>
    <p class="note">By ${record.drafted_by || "somebody"}, <${Time} at=${record.drafted_at} /></p>
    <${Check} key=${`check ${record.drafted_at}`} name=${record.name} />
    <${Rules} label="Draft" policy=${record.draft} /><//>
    <${Difference} key=${`${record.drafted_at} ${version?.label}`} name=${record.name} versions=${versions}
      against=${params.against} />`;
}

function Check({ name }) {
  const check = useRead("policies.check", { name });
  if (check.error) return html`<${Failure} error=${check.error} />`;
  return html`<p class="note">${check.data ? "✓ Its models are known." : "Looking for its models…"}</p>`;
}

function Difference({ name, versions, against }) {
  const diff = useRead("policies.diff", { name, against });
  const labels = versions.filter(({ policy }) => policy).map(({ label }) => label);
  const choice = html`<${Choice} label="Compared with" name="against"
    options=${[["", "What is in force"], ...labels]} />`;
  const terms = ["Quality", "Cost", "Latency", "Stability"].map((name) => (
    { name, kind: "number", of: ({ shift, when }) => count(shift[when]?.[name.toLowerCase()]) }));
  return html`<${Section} title="What it changes" actions=${choice}>
    <${Loaded} of=${diff}>${({ differences, weights, against: label }) => html`
      <p class="note">Compared with ${label ?? "a policy without rules"}</p>
      <${Table} caption="Differences" rows=${differences} empty="Nothing changes." columns=${[
        { name: "Field", of: ({ path }) => html`<code>${path}</code>` },
        { name: "Before", of: ({ before }) => html`<code>${before}</code>` },
        { name: "After", of: ({ after }) => html`<code>${after}</code>` },
      ]} />
      ${weights.length > 0 && html`<h3>Weights of the score, in percent</h3><${Table} caption="Weights"
        rows=${weights.flatMap((shift) => [{ shift, when: "before" }, { shift, when: "after" }])} columns=${[
          { name: "Requests", of: ({ shift }) => shift.policy_class || "of no class" },
          { name: "Weights", of: ({ when }) => when }, ...terms,
        ]} />`}`}<//><//>`;
}

const unsaved = new Map(); // texts by name, which outlive the view, as when a session ends

/** Edits the text of a draft. `record` is what it replaces; none: a new policy. */
export function Editor({ record, start, onSaved, onConflict, cancel }) {
  const slot = record?.name;
  const [work, setWork] = useState(() => unsaved.get(slot) ?? { text: jsonOf(start), base: record });
  const [theirs, setTheirs] = useState(null);
  const keep = (changes) => {
    const next = { ...work, ...changes };
    unsaved.set(slot, next);
    setWork(next);
  };
  const save = async (base) => {
    const policy = policyOf(work.text);
    // a text with another name is a new policy
    const expect = base && base.name === policy?.name ? base : "absent";
    try {
      const saved = await change("policies.draft", { policy, expect });
      unsaved.delete(slot);
      onSaved(saved);
    } catch (error) {
      if (error.status === 412) {
        const states = await read("policies.states");
        setTheirs(states.find((state) => state.record.name === policy.name));
        onConflict?.();
      }
      throw error;
    }
  };
  const take = () => {
    keep({ base: theirs.record, text: jsonOf(theirs.record.draft ?? theirs.version.policy) });
    setTheirs(null);
  };
  return html`<div class="columns"><${Section} title=${record?.draft ? "Edit the draft" : "Write a draft"}>
    <${Form} action=${theirs ? "Replace it" : "Save the draft"} kind=${theirs && "danger"}
      onSubmit=${() => save(theirs?.record ?? work.base)} cancel=${() => { unsaved.delete(slot); cancel(); }}>
      <${Area} label="Policy, in JSON" value=${work.text} spellcheck=${false} rows="20"
        onInput=${(event) => keep({ text: event.target.value })} /><//>
    <${Fields} /><//>
    ${theirs && html`<${Theirs} state=${theirs} mine=${work.text} take=${take} />`}</div>`;
}

/** What is stored in place of the record that was read. Its lines that the text lacks are marked. */
function Theirs({ state: { record, version }, mine, take }) {
  const lines = new Set(mine.split("\n"));
  const policy = record.draft ?? version?.policy;
  const title = record.draft ? `Draft of ${record.drafted_by || "somebody"}` : "No draft";
  const button = policy && html`<${Button} onClick=${take}>Take theirs<//>`;
  return html`<${Section} title=${title} actions=${button}><p>
    ${record.draft ? html`Saved <${Time} at=${record.drafted_at} />, after you began.`
      : `It was published or discarded after you began. In force: ${version?.label ?? "nothing"}.`}
    ${" "}Your text is still here: replace this with it, or take this in its place.</p>
    ${policy && html`<${Text} label="Stored policy">${jsonOf(policy).split("\n").map((line) =>
      html`${lines.has(line) ? line : html`<mark>${line}</mark>`}${"\n"}`)}<//>`}<//>`;
}

/** What the fields of a policy mean. */
function Fields() {
  const [isOpen, setOpen] = useState(false);
  const fields = useRead("page.policy_fields", {}, { skip: !isOpen });
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>Fields of a policy</summary>
    ${isOpen && html`<${Loaded} of=${fields}>${(rows) => html`
      <${Table} caption="Fields of a policy" rows=${rows} columns=${[
        { name: "Field", of: ({ path }) => html`<code>${path}</code>` },
        { name: "Meaning", of: ({ meaning }) => meaning },
        { name: "Choices", of: ({ choices }) => choices.join(", ") },
      ]} />`}<//>`}</details>`;
}
