import { View, html } from "../lib.js";

export const Policies = () => html`<${View} title="Policies" />`;
