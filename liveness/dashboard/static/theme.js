// Dark or light colours: those of the system until the user chooses. The browser stores the choice.
import { cell } from './cell.js';

const KEY = 'liveness.theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

function kept() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage may be forbidden
  }
}

function current() {
  return kept() ?? (dark.matches ? 'dark' : 'light');
}

export const theme = cell(current());
theme.watch((name) => (document.documentElement.dataset.theme = name));
document.documentElement.dataset.theme = theme.value;
dark.addEventListener('change', () => theme.set(current()));

export function toggleTheme() {
  const next = theme.value === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // without storage, the choice is kept until the page is closed
  }
  theme.set(next);
}
