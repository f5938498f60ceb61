import { View, html } from "../lib.js";

export const Trace = () => html`<${View} title="Trace" />`;
