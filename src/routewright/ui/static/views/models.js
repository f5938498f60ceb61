import { View, html } from "../lib.js";

export const Models = () => html`<${View} title="Models" />`;
