// Who is signed in, and what that person may do. The browser keeps the session in a cookie that scripts cannot read.
import { get, onUnauthenticated, post } from './api.js';
import { cell } from './cell.js';
import { allNamespaces } from './fleet.js';
import { stopWatching } from './live.js';
import { SECOND } from './time.js';

/** Other servers of the cluster know a new session this long after it was created. */
const KNOWN_EVERYWHERE_MS = SECOND;
const RETRY_MS = SECOND;
/** The roles that include a role. */
const INCLUDED_IN = { reader: ['reader', 'operator', 'admin'], operator: ['operator', 'admin'], producer: ['producer', 'admin'] };

/** state: unknown, open (the server asks nobody), signed in (with principal, grants and credential) or signed out. */
export const session = cell({ state: 'unknown' });

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Asks the server until it answers. */
export async function loadSession() {
  while (session.value.state === 'unknown') {
    try {
      begin(await get('/auth/session'));
    } catch (error) {
      if (error.status !== 401) await wait(RETRY_MS);
    }
  }
}

function begin({ authenticated, principal, grants, credential }) {
  if (!authenticated) {
    session.set({ state: 'open' });
    return;
  }
  session.set({ state: 'signed in', principal, credential, grants: grants.map(grantOf) });
  if (ownNamespaces()) allNamespaces.namespace = ownNamespaces()[0] ?? '';
}

onUnauthenticated(() => {
  if (session.value.state === 'signed out') return;
  stopWatching();
  session.set({ state: 'signed out' });
});

/** The page starts anew, so that nothing of what another person was shown remains in it. */
export async function signIn(token) {
  await post('/auth/sign-in', { token });
  await wait(KNOWN_EVERYWHERE_MS);
  try {
    await get('/auth/session');
  } catch (error) {
    if (error.status !== 401) throw error;
    throw new Error('The browser did not keep the session. Open this page over https, or at 127.0.0.1.');
  }
  location.reload();
}

export async function signOut(everywhere) {
  await post('/auth/sign-out', { everywhere });
  location.reload();
}

/** ROLE:NAMESPACE or ROLE:NAMESPACE:KEY_PREFIX. */
function grantOf(text) {
  const [role, namespace, ...rest] = text.split(':');
  return { role, namespace: decodeURIComponent(namespace), prefix: decodeURIComponent(rest.join(':')) };
}

/** Whether the person has a role for a worker, or for the whole namespace if there is no key. The server decides; this only hides buttons. */
export function may(role, namespace, key = '') {
  const { state, grants } = session.value;
  if (state !== 'signed in') return true;
  return grants.some(
    (grant) => INCLUDED_IN[role].includes(grant.role) && (grant.namespace === '*' || grant.namespace === namespace) && key.startsWith(grant.prefix),
  );
}

/** The namespaces that the person may read; null if these are all. */
export function ownNamespaces() {
  const { state, grants } = session.value;
  if (state !== 'signed in' || may('reader', '*')) return null;
  return [...new Set(grants.filter((grant) => INCLUDED_IN.reader.includes(grant.role) && grant.namespace !== '*').map((grant) => grant.namespace))];
}
