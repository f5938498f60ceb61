// Calls the JSON endpoints beside the page. No rule of the product lives here: errors have the words of the server.

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.detail = error.detail || {};
    this.trace_id = error.trace_id;
  }
}

const LONGEST_QUERY = 4000; // proxies refuse addresses of 8 kB

// A cookie goes to all ports of this host, so the server also wants a token, which other origins cannot read.
const PLACE = `routewright ${location.pathname}`;
let token = localStorage.getItem(PLACE) ?? "";
let onSignedOut = () => {};

/** Call `listener` with the error whenever the session is over. */
export const whenSignedOut = (listener) => { onSignedOut = listener; };

export async function fail(response) {
  const body = await response.json().catch(() => null);
  const error = new ApiError(response.status, body?.error || { message: `the server answered ${response.status}` });
  if (response.status === 401) onSignedOut(error);
  throw error;
}

async function send(path, options = {}) {
  let response;
  try {
    const headers = { ...options.headers, "X-Session-Token": token };
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "the server cannot be reached; check that it runs" });
  }
  return response.ok ? response : fail(response);
}

const changing = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

/** The result of an operation that reads. Undefined arguments are left out. `polling`: nobody asked for it. */
export async function read(name, args = {}, { polling = false, signal } = {}) {
  const query = encodeURIComponent(JSON.stringify(args));
  const isLong = query.length > LONGEST_QUERY;
  const options = isLong ? changing(args) : {};
  const headers = { ...options.headers, ...(polling && { "X-Polling": "1" }) };
  return (await send(`api/${name}${isLong ? "" : `?${query}`}`, { ...options, headers, signal })).json();
}

/** The result of an operation that changes something. */
export const change = async (name, args) => (await send(`api/${name}`, changing(args))).json();

/** Calls `onEvent(name, data)` for each event of the answer to a request that is tried. */
export async function tryRequest(request, onEvent, signal) {
  const response = await send("api/try", { ...changing(request), signal });
  let rest = "";
  for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
    const events = (rest + chunk).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const name = /^event: (.*)$/m.exec(event);
      if (name) onEvent(name[1], JSON.parse(/^data: (.*)$/m.exec(event)[1]));
    }
  }
}

export const hasToken = () => token !== "";

async function keep(response) {
  const session = await response.json();
  token = session.token;
  localStorage.setItem(PLACE, token);
  return session;
}

export const session = async () => keep(await send("session"));
export const signIn = async (credentials) => keep(await send("session", changing(credentials)));
export async function signOut() {
  await send("session", { method: "DELETE" });
  token = "";
  localStorage.removeItem(PLACE);
}
