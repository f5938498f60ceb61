import { View, html } from "../lib.js";

export const Accounts = () => html`<${View} title="Accounts" />`;
