import { View, html } from "../lib.js";

export const Traces = () => html`<${View} title="Traces" />`;
