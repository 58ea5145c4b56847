// Calls to the server. A refusal arrives as a Refusal that can be shown to people; no answer at all as Unreachable.
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

/** Lists are repeated, as in states=A&states=B; what is empty is left out. */
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

/** From an answer that is not OK; what stands between us and the server may answer in any form. */
export function refusal(status, text) {
  let body = {};
  try {
    body = JSON.parse(text);
  } catch {
    // not from the server itself
  }
  const told = body.error ?? body;
  const info = (told.details ?? []).find((detail) => detail.reason) ?? {};
  return new Refusal(status, info.reason ?? '', told.message ?? `The server answered ${status}.`, info.metadata ?? {});
}
