// The form that asks for a token, and the button that shows who is signed in.
import { useCell } from '../cell.js';
import { Modal } from '../dialog.js';
import { html, useState } from '../html.js';
import { Icon } from '../icons.js';
import { session, signIn, signOut } from '../session.js';
import { Name } from './text.js';

export function SignInForm() {
  const [refusal, setRefusal] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    setBusy(true);
    setRefusal(null);
    try {
      await signIn(field.value);
    } catch (error) {
      setRefusal(error.status === 401 ? 'The server does not accept this token. It may have expired or been revoked.' : error.message);
      setBusy(false);
    }
    field.value = '';
  };
  return html`<main class="sign-in">
    <form class="card" onSubmit=${submit}>
      <h1 tabindex="-1">Sign in to liveness</h1>
      <label class="field"><span>Token <small class="mute">begins with lvt_</small></span>
        <input type="password" name="token" required maxlength="1000" autocomplete="off" spellcheck=${false} autofocus />
      </label>
      ${refusal && html`<p class="refusal" role="alert"><${Icon} name="warning" />${refusal}</p>`}
      <div class="dialog-buttons"><button type="submit" class="button primary" disabled=${busy}>Sign in</button></div>
    </form>
  </main>`;
}

/** Nothing if the server asks nobody. Who came with another credential, as through a proxy, signs out there. */
export function Person() {
  const [open, setOpen] = useState(false);
  const { state, principal, credential } = useCell(session);
  if (state !== 'signed in') return null;
  if (credential !== 'session') return html`<span class="person"><${Name} plain>${principal}<//></span>`;
  return html`<span class="person"><${Name} plain>${principal}<//></span>
    <button type="button" class="button small" onClick=${() => setOpen(true)}>Sign out</button>
    ${open && html`<${SignOut} onClose=${() => setOpen(false)} />`}`;
}

function SignOut({ onClose }) {
  const [refusal, setRefusal] = useState(null);
  const end = (everywhere) => () => signOut(everywhere).catch((error) => setRefusal(error.message));
  return html`<${Modal} label="Sign out" onClose=${onClose}>
    <h2>Sign out</h2>
    <p>Your session ends in this browser, or in all browsers where you have signed in.</p>
    ${refusal && html`<p class="refusal" role="alert"><${Icon} name="warning" />${refusal}</p>`}
    <div class="dialog-buttons">
      <button type="button" class="button" onClick=${end(true)}>Everywhere</button>
      <button type="button" class="button primary" onClick=${end(false)}>In this browser</button>
    </div>
  <//>`;
}
