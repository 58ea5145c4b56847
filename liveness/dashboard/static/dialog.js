// Confirmation dialogs. One dialog at a time; Esc and a click beside it close it.
import { cell, useCell } from './cell.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './html.js';
import { Icon } from './icons.js';
import { Name } from './parts/text.js';

const asked = cell(null);
const toast = cell(null);
const TOAST_MS = 6_000;

/**
 * question: {title, subject, sentence, button, danger, fields: [{name, label, hint, value}], run(values) → outcome}.
 * A refusal is shown in the dialog, which stays open.
 */
export function ask(question) {
  asked.set(question);
}

export function tell(message) {
  toast.set({ message });
}

/** Draws the dialog and the notification. */
export function Dialogs() {
  const question = useCell(asked);
  return html`${question && html`<${Question} question=${question} />`}<${Toast} />`;
}

/** A modal dialog that is open while its component is mounted. */
export function Modal({ label, onClose, children }) {
  const box = useRef();
  useLayoutEffect(() => {
    const before = document.activeElement;
    const dialog = box.current;
    dialog.showModal();
    return () => {
      dialog.close(); // nothing behind an open dialog can be focused
      before?.focus?.();
    };
  }, []);
  return html`<dialog ref=${box} class="dialog" aria-label=${label} onClose=${onClose} onClick=${(event) => event.target === box.current && box.current.close()}>
    <div class="dialog-body">${children}</div>
  </dialog>`;
}

function Question({ question }) {
  const [values, setValues] = useState(() => Object.fromEntries((question.fields ?? []).map((field) => [field.name, field.value ?? ''])));
  const [refusal, setRefusal] = useState(null);
  const [busy, setBusy] = useState(false);
  const close = () => asked.value === question && asked.set(null);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setRefusal(null);
    try {
      const result = await question.run(values);
      close();
      tell(result);
    } catch (error) {
      setRefusal(error.message);
      setBusy(false);
    }
  };
  return html`<${Modal} label=${question.title} onClose=${close}>
    <form onSubmit=${submit}>
      <h2>${question.title}</h2>
      ${question.subject && html`<p class="dialog-subject"><${Name}>${question.subject}<//></p>`}
      <p>${question.sentence}</p>
      ${(question.fields ?? []).map(
        (field) => html`<label class="field" key=${field.name}>
          <span>${field.label}${field.hint && html` <small class="mute">${field.hint}</small>`}</span>
          <input name=${field.name} value=${values[field.name]} maxlength="200" autocomplete="off"
            onInput=${(event) => setValues({ ...values, [field.name]: event.target.value })} />
        </label>`,
      )}
      ${refusal && html`<p class="refusal" role="alert"><${Icon} name="warning" />${refusal}</p>`}
      <div class="dialog-buttons">
        <button type="button" class="button" onClick=${close}>Leave it</button>
        <button type="submit" class=${`button primary ${question.danger ? 'danger' : ''}`} disabled=${busy}>${question.button}</button>
      </div>
    </form>
  <//>`;
}

function Toast() {
  const notification = useCell(toast);
  useEffect(() => {
    const timer = notification && setTimeout(() => toast.set(null), TOAST_MS);
    return () => clearTimeout(timer);
  }, [notification]);
  return html`<div class="toast-place" role="status" aria-live="polite">
    ${notification && html`<div class="toast"><${Icon} name="check" />${notification.message}</div>`}
  </div>`;
}
