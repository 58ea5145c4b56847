// Calls to the server. An error answer throws a Refusal with a text for people; a missing answer throws Unreachable.
import { sentenceFor } from './refusals.js';

const CALL_TIMEOUT_MS = 15_000;

export class Refusal extends Error {
  constructor(status, reason, message, fields) {
    super(sentenceFor(reason, message, fields));
    this.status = status;
    this.reason = reason;
  }
}

export class Unreachable extends Error {
  constructor() {
    super('The server cannot be reached. Nothing is known to have changed.');
    this.status = 0;
    this.reason = '';
  }
}

let unauthenticated = () => {};

/** `listener` is called when the server does not know who calls, or not any more. */
export function onUnauthenticated(listener) {
  unauthenticated = listener;
}

/** A namespace as part of a path. */
export function inNamespace(namespace, rest) {
  if (namespace === '.' || namespace === '..') {
    throw new Refusal(400, '', `A namespace called “${namespace}” cannot be named in a web address; use the liveness command.`);
  }
  return `/v1/namespaces/${encodeURIComponent(namespace)}/${rest}`;
}

export function get(path, query = {}, options = {}) {
  const text = queryText(query);
  return call(text ? `${path}?${text}` : path, options);
}

export function post(path, body) {
  return call(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body),
  });
}

/** A list becomes repeated parameters, as in states=A&states=B; empty values are left out. */
export function queryText(query) {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== '' && one !== null && one !== undefined && one !== false) text.append(name, String(one));
    }
  }
  return text.toString();
}

async function call(url, { signal, ...options }) {
  const limit = AbortSignal.timeout(CALL_TIMEOUT_MS);
  let answer, text;
  try {
    answer = await fetch(url, { ...options, signal: signal ? AbortSignal.any([signal, limit]) : limit, cache: 'no-store' });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable();
  }
  if (!answer.ok) throw refusal(answer.status, text);
  return JSON.parse(text);
}

/** The Refusal of an answer that is not OK. A proxy in between may answer in any format. */
export function refusal(status, text) {
  if (status === 401) unauthenticated();
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    // the answer does not come from the server itself
  }
  const error = body.error ?? body;
  const info = (error.details ?? []).find((detail) => detail.reason) ?? {};
  return new Refusal(status, info.reason ?? '', error.message ?? `The server answered ${status}.`, info.metadata ?? {});
}
